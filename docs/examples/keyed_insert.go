// Insert one row exactly once, with Go's standard library only.
//
//	go run keyed_insert.go USER PASSWORD SPACE_ID HOST:PORT...
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

const (
	typeKey, syncKey, idempotencyKey = 0x00, 0x01, 0x70 // of the header
	spaceKey, tupleKey, nameKey      = 0x10, 0x21, 0x22 // of the body
	userKey, dataKey, errorKey       = 0x23, 0x30, 0x31
	indexKey                         = 0x71
	insert, auth, call               = 2, 7, 10
)

// refused is an error answer: nothing was logged, unless the code is unknown (295, 16386).
type refused struct {
	code uint64
	text string
}

func (e refused) Error() string { return fmt.Sprintf("error %d: %s", e.code, e.text) }

// mayRepeat tells whether another attempt with the same key makes sense: without an answer (the
// outcome is unknown), and for read-only, loading, no leader and unknown.
func mayRepeat(err error) bool {
	answer, isAnswer := err.(refused)
	return !isAnswer || answer.code == 7 || answer.code == 116 || answer.code == 226 || answer.code == 295
}

type conn struct {
	net.Conn
	in *bufio.Reader
}

func connect(address, user, password string) (*conn, error) {
	dialled, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return nil, err
	}
	c := &conn{dialled, bufio.NewReader(dialled)}
	c.SetDeadline(time.Now().Add(2 * time.Second))
	greeting := make([]byte, 128)
	if _, err := io.ReadFull(c.in, greeting); err != nil {
		return nil, err
	}
	salt, err := base64.StdEncoding.DecodeString(string(greeting[64:108]))
	if err != nil {
		return nil, err
	}
	first := sha1.Sum([]byte(password))
	second := sha1.Sum(first[:])
	proof := sha1.Sum(append(salt[:20:20], second[:]...))
	for i := range proof {
		proof[i] ^= first[i]
	}
	body := fields{{userKey, user}, {tupleKey, []any{"chap-sha1", proof[:]}}}
	_, err = c.ask(auth, nil, body)
	return c, err
}

// ask sends one request and returns the body of its answer. key is nil or an idempotency key.
func (c *conn) ask(kind int, key []any, body fields) (map[uint64]any, error) {
	header := fields{{typeKey, kind}, {syncKey, 1}}
	if key != nil {
		header = append(header, field{idempotencyKey, key})
	}
	packet := append(pack(nil, header), pack(nil, body)...)
	if _, err := c.Write(append(pack(nil, len(packet)), packet...)); err != nil {
		return nil, err
	}
	length, err := unpack(c.in)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, length.(uint64))
	if _, err := io.ReadFull(c.in, answer); err != nil {
		return nil, err
	}
	in := bufio.NewReader(bytes.NewReader(answer))
	head, err := unpack(in)
	if err != nil {
		return nil, err
	}
	rest, err := unpack(in)
	if err != nil {
		rest = map[uint64]any{} // an answer may have no body
	}
	found := rest.(map[uint64]any)
	if code := head.(map[uint64]any)[typeKey].(uint64); code != 0 {
		text, _ := found[errorKey].(string)
		return nil, refused{code & 0x7fff, text}
	}
	return found, nil
}

// insertOnce returns the log index of the write, or 0 if the outcome stays unknown.
func insertOnce(addresses []string, user, password string, space int, row []any) (uint64, error) {
	var key []any
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, address := range addresses {
			index, err := attempt(address, user, password, space, row, &key)
			if err == nil || !mayRepeat(err) {
				return index, err
			}
		}
	}
	return 0, nil
}

func attempt(address, user, password string, space int, row []any, key *[]any) (uint64, error) {
	c, err := connect(address, user, password)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if *key == nil { // once for this write: each retry repeats all three parts
		mark, err := c.ask(call, nil, fields{{nameKey, "qsync.mark"}, {tupleKey, []any{}}})
		if err != nil {
			return 0, err
		}
		name := make([]byte, 12)
		rand.Read(name)
		*key = []any{hex.EncodeToString(name), 1, mark[dataKey].([]any)[0]}
	}
	answer, err := c.ask(insert, *key, fields{{spaceKey, space}, {tupleKey, row}})
	if err != nil {
		return 0, err
	}
	return answer[indexKey].(uint64), nil
}

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: keyed_insert USER PASSWORD SPACE_ID HOST:PORT...")
		os.Exit(2)
	}
	space, err := strconv.Atoi(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "SPACE_ID is a number, such as 512:", os.Args[3])
		os.Exit(2)
	}
	index, err := insertOnce(os.Args[4:], os.Args[1], os.Args[2], space, []any{1, 100})
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case index == 0:
		fmt.Fprintln(os.Stderr, "still unknown")
		os.Exit(1)
	default:
		fmt.Println("committed at", index)
	}
}

// --- the part of msgpack that this program needs ------------------------------------------------

type field struct {
	key   int
	value any
}

type fields []field

func pack(out []byte, value any) []byte {
	switch v := value.(type) {
	case int:
		return pack(out, uint64(v))
	case uint64:
		return binary.BigEndian.AppendUint64(append(out, 0xcf), v)
	case string:
		out = binary.BigEndian.AppendUint32(append(out, 0xdb), uint32(len(v)))
		return append(out, v...)
	case []byte:
		out = binary.BigEndian.AppendUint32(append(out, 0xc6), uint32(len(v)))
		return append(out, v...)
	case []any:
		out = binary.BigEndian.AppendUint32(append(out, 0xdd), uint32(len(v)))
		for _, one := range v {
			out = pack(out, one)
		}
		return out
	case fields:
		out = binary.BigEndian.AppendUint32(append(out, 0xdf), uint32(len(v)))
		for _, one := range v {
			out = pack(pack(out, one.key), one.value)
		}
		return out
	}
	panic(fmt.Sprintf("cannot pack %T", value))
}

func number(in *bufio.Reader, size int) (uint64, error) {
	var data [8]byte
	_, err := io.ReadFull(in, data[8-size:])
	return binary.BigEndian.Uint64(data[:]), err
}

// sized reads a count of 1 << shift bytes, then as many items as the count.
func sized(in *bufio.Reader, shift byte, read func(*bufio.Reader, uint64) (any, error)) (any, error) {
	count, err := number(in, 1<<shift)
	if err != nil {
		return nil, err
	}
	return read(in, count)
}

func unpack(in *bufio.Reader) (any, error) {
	tag, err := in.ReadByte()
	switch {
	case err != nil:
		return nil, err
	case tag < 0x80:
		return uint64(tag), nil
	case tag < 0x90:
		return unpackMap(in, uint64(tag&15))
	case tag < 0xa0:
		return unpackArray(in, uint64(tag&15))
	case tag < 0xc0:
		return unpackString(in, uint64(tag&31))
	case tag == 0xc0, tag == 0xc2, tag == 0xc3:
		return tag == 0xc3, nil
	case tag >= 0xc4 && tag <= 0xc6:
		return sized(in, tag-0xc4, unpackString)
	case tag >= 0xcc && tag <= 0xcf:
		return number(in, 1<<(tag-0xcc))
	case tag >= 0xd9 && tag <= 0xdb:
		return sized(in, tag-0xd9, unpackString)
	case tag == 0xdc, tag == 0xdd:
		return sized(in, tag-0xdb, unpackArray)
	case tag == 0xde, tag == 0xdf:
		return sized(in, tag-0xdd, unpackMap)
	case tag >= 0xe0:
		return int64(int8(tag)), nil
	}
	return nil, fmt.Errorf("unexpected msgpack type %#x", tag)
}

func unpackString(in *bufio.Reader, count uint64) (any, error) {
	data := make([]byte, count)
	_, err := io.ReadFull(in, data)
	return string(data), err
}

func unpackArray(in *bufio.Reader, count uint64) (any, error) {
	items := make([]any, count)
	for i := range items {
		item, err := unpack(in)
		if err != nil {
			return nil, err
		}
		items[i] = item
	}
	return items, nil
}

func unpackMap(in *bufio.Reader, count uint64) (any, error) {
	found := map[uint64]any{}
	for ; count > 0; count-- {
		key, err := unpack(in)
		if err != nil {
			return nil, err
		}
		value, err := unpack(in)
		if err != nil {
			return nil, err
		}
		if name, isNumber := key.(uint64); isNumber {
			found[name] = value
		}
	}
	return found, nil
}
