// Command driver makes the checks of matrix.py with go-tarantool.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	"driver/client"

	"github.com/google/uuid"
)

var (
	addresses = strings.Split(os.Getenv("CONNECTOR_ADDRESSES"), ",")
	user      = os.Getenv("CONNECTOR_USER")
	password  = os.Getenv("CONNECTOR_PASSWORD")
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	connection, err := client.Connect(ctx, addresses[0], user, password)
	if err != nil {
		fmt.Println("log in: failed:", err)
		return
	}
	report("log in", refusesWrongPassword(ctx))
	report("types", types(connection))
	report("requests", requests(connection))
	report("errors", duplicates(connection))
	report("names", names(connection))
	report("transactions", transactions(connection))
	report("watchers", watchers(connection))
	report("pages", pages(connection))
	report("console", console(connection))
	report("failover", failover(ctx))
}

func report(name string, err error) {
	if err != nil {
		fmt.Printf("%s: failed: %v\n", name, strings.ReplaceAll(err.Error(), "\n", " "))
	} else {
		fmt.Printf("%s: ok\n", name)
	}
}

func expect(got any, err error, wanted any) error {
	if err != nil {
		return err
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		return fmt.Errorf("%v instead of %v", got, wanted)
	}
	return nil
}

func refusesWrongPassword(ctx context.Context) error {
	if connection, err := client.Connect(ctx, addresses[0], user, "wrong"); err == nil {
		_ = connection.Close()
		return errors.New("a wrong password is accepted")
	}
	return nil
}

func types(connection *client.Connection) error {
	number, err := client.Decimal("-12345678901234567890.123456789")
	if err != nil {
		return err
	}
	moment, err := client.Datetime(time.Date(2026, 11, 27, 4, 5, 6, 7000, time.UTC))
	if err != nil {
		return err
	}
	values := []any{
		nil, true, false, uint64(1<<63 + 5), int64(-1 << 62), 3.5, "text", []byte{0, 255},
		[]any{"nested"}, map[any]any{"key": "value"}, number, moment,
		uuid.MustParse("64d22e4d-ac92-4a23-899a-e59f34af5479"), client.Interval{Year: 1, Day: -2},
	}
	for _, value := range values {
		row := []any{uint(1), "types", value}
		got, err := connection.Do(client.Replace("kv").Tuple(row)).Get()
		if err != nil {
			return fmt.Errorf("%T: %w", value, err)
		}
		back := got[0].([]any)[2]
		if sent, ok := value.([]byte); ok {
			if text, ok := back.(string); ok {
				back = []byte(text)
			}
			if !bytes.Equal(sent, back.([]byte)) {
				return fmt.Errorf("%v instead of %v", back, value)
			}
		} else if !reflect.DeepEqual(back, value) && fmt.Sprint(back) != fmt.Sprint(value) {
			return fmt.Errorf("%T: %v instead of %v", value, back, value)
		}
	}
	return nil
}

func requests(connection *client.Connection) error {
	for number := 10; number < 15; number++ {
		row := []any{uint(number), "row", number}
		got, err := connection.Do(client.Insert("kv").Tuple(row)).Get()
		if err := expect(got, err, []any{row}); err != nil {
			return fmt.Errorf("insert: %w", err)
		}
	}
	update := client.Update("kv").Key([]any{uint(10)}).Operations(client.Operations().Add(2, 5))
	got, err := connection.Do(update).Get()
	if err := expect(got, err, "[[10 row 15]]"); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	upsert := client.Upsert("kv").Tuple([]any{uint(11), "row", 0}).
		Operations(client.Operations().Add(2, 5))
	if got, err = connection.Do(upsert).Get(); err != nil {
		return fmt.Errorf("upsert: %w", err)
	}
	got, err = connection.Do(client.Delete("kv").Key([]any{uint(12)})).Get()
	if err := expect(got, err, "[[12 row 12]]"); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	chosen := client.Select("kv").Iterator(client.IterGe).Key([]any{uint(10)}).Offset(1).Limit(2)
	got, err = connection.Do(chosen).Get()
	return expect(got, err, "[[11 row 16] [13 row 13]]")
}

func duplicates(connection *client.Connection) error {
	_, err := connection.Do(client.Insert("kv").Tuple([]any{uint(10), "row", 0})).Get()
	if err == nil || !strings.Contains(err.Error(), "Duplicate key") ||
		!strings.Contains(err.Error(), "0x3") {
		return fmt.Errorf("a duplicate key gives %v", err)
	}
	return nil
}

func names(connection *client.Connection) error {
	chosen := client.Select("kv").Index("name").Key([]any{"types"}).Limit(1)
	got, err := connection.Do(chosen).Get()
	if err == nil && len(got) != 1 {
		return fmt.Errorf("%d rows instead of one", len(got))
	}
	return err
}

func transactions(connection *client.Connection) error {
	for number, end := range []client.Request{client.Rollback(), client.Commit()} {
		stream, err := connection.NewStream()
		if err != nil {
			return err
		}
		row := []any{uint(30), "stream", number}
		for _, request := range []client.Request{client.Begin(), client.Replace("kv").Tuple(row)} {
			if _, err := stream.Do(request).Get(); err != nil {
				return err
			}
		}
		before := client.Select("kv").Key([]any{uint(30)})
		outside, err := connection.Do(before).Get()
		if err := expect(outside, err, "[]"); err != nil {
			return fmt.Errorf("before the end: %w", err)
		}
		if _, err := stream.Do(end).Get(); err != nil {
			return err
		}
	}
	got, err := connection.Do(client.Select("kv").Key([]any{uint(30)})).Get()
	return expect(got, err, "[[30 stream 1]]")
}

func watchers(connection *client.Connection) error {
	for _, key := range []string{"box.election", "box.schema"} {
		events := make(chan any, 10)
		watcher, err := connection.NewWatcher(key, func(event client.WatchEvent) {
			events <- event.Value
		})
		if err != nil {
			return err
		}
		select {
		case value := <-events:
			if value == nil {
				return fmt.Errorf("%s has no value", key)
			}
		case <-time.After(10 * time.Second):
			return fmt.Errorf("%s: no event", key)
		}
		watcher.Unregister()
	}
	return nil
}

func pages(connection *client.Connection) error {
	seen := []any{}
	chosen := client.Select("kv").Iterator(client.IterGe).Key([]any{uint(10)}).Limit(2).
		FetchPos(true)
	for {
		future := connection.Do(chosen)
		rows, err := future.Get()
		if err != nil {
			return err
		}
		for _, row := range rows {
			seen = append(seen, row.([]any)[0])
		}
		if len(rows) == 0 {
			return expect(seen, nil, "[10 11 13 14 30]")
		}
		response, err := future.GetResponse()
		if err != nil {
			return err
		}
		position, err := response.(*client.SelectResponse).Pos()
		if err != nil {
			return err
		}
		chosen = chosen.After(position)
	}
}

func console(connection *client.Connection) error {
	got, err := connection.Do(client.Eval("return true")).Get()
	if err := expect(got, err, "[true]"); err != nil {
		return err
	}
	got, err = connection.Do(client.Call("box.info")).Get()
	if err == nil && len(got) != 1 {
		return fmt.Errorf("box.info returns %d values", len(got))
	}
	return err
}

// failover writes through a pool that follows the leader.
func failover(ctx context.Context) error {
	members, err := client.ConnectPool(ctx, addresses, user, password)
	if err != nil {
		return err
	}
	last, after := error(nil), 0
	end := time.Now().Add(40 * time.Second)
	for number := uint(0); after < 50 && time.Now().Before(end); number++ {
		row := []any{uint(1000 + number), "failover", number}
		_, err := members.Do(client.Replace("kv").Tuple(row), client.RW).Get()
		switch {
		case err != nil:
			last, after = err, 1
			time.Sleep(20 * time.Millisecond)
		case last != nil:
			after++
		case number == 20:
			fmt.Println("failover: ready")
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
	if after < 50 {
		return fmt.Errorf("no writes after the failover: %v", last)
	}
	return nil
}
