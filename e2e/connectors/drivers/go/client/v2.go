//go:build v2

// Package client gives versions 2 and 3 of go-tarantool the same names.
package client

import (
	"context"
	"time"

	"github.com/tarantool/go-tarantool/v2"
	"github.com/tarantool/go-tarantool/v2/datetime"
	"github.com/tarantool/go-tarantool/v2/decimal"
	"github.com/tarantool/go-tarantool/v2/pool"
	_ "github.com/tarantool/go-tarantool/v2/uuid"
)

type (
	Connection     = tarantool.Connection
	Request        = tarantool.Request
	WatchEvent     = tarantool.WatchEvent
	SelectResponse = tarantool.SelectResponse
	Interval       = datetime.Interval
	Pool           = pool.ConnectionPool
)

var (
	Insert     = tarantool.NewInsertRequest
	Replace    = tarantool.NewReplaceRequest
	Update     = tarantool.NewUpdateRequest
	Upsert     = tarantool.NewUpsertRequest
	Delete     = tarantool.NewDeleteRequest
	Select     = tarantool.NewSelectRequest
	Call       = tarantool.NewCallRequest
	Eval       = tarantool.NewEvalRequest
	Begin      = tarantool.NewBeginRequest
	Commit     = tarantool.NewCommitRequest
	Rollback   = tarantool.NewRollbackRequest
	Operations = tarantool.NewOperations
	Decimal    = decimal.MakeDecimalFromString
	Datetime   = datetime.MakeDatetime
)

const (
	IterAll = tarantool.IterAll
	IterGe  = tarantool.IterGe
	RW      = pool.RW
)

func dialer(address, user, password string) tarantool.Dialer {
	return tarantool.NetDialer{Address: address, User: user, Password: password}
}

func Connect(ctx context.Context, address, user, password string) (*Connection, error) {
	opts := tarantool.Opts{Timeout: 10 * time.Second}
	return tarantool.Connect(ctx, dialer(address, user, password), opts)
}

func ConnectPool(ctx context.Context, addresses []string, user, password string) (*Pool, error) {
	instances := []pool.Instance{}
	for _, address := range addresses {
		opts := tarantool.Opts{Timeout: 10 * time.Second, Reconnect: 100 * time.Millisecond}
		instances = append(instances, pool.Instance{
			Name: address, Dialer: dialer(address, user, password), Opts: opts})
	}
	return pool.ConnectWithOpts(ctx, instances, pool.Opts{CheckTimeout: 100 * time.Millisecond})
}
