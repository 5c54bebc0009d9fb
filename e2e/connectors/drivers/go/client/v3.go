//go:build v3

// Package client gives versions 2 and 3 of go-tarantool the same names.
package client

import (
	"context"
	"time"

	"github.com/tarantool/go-tarantool/v3"
	"github.com/tarantool/go-tarantool/v3/datetime"
	"github.com/tarantool/go-tarantool/v3/decimal"
	"github.com/tarantool/go-tarantool/v3/pool"
	_ "github.com/tarantool/go-tarantool/v3/uuid"
)

type (
	Connection     = tarantool.Connection
	Request        = tarantool.Request
	WatchEvent     = tarantool.WatchEvent
	SelectResponse = tarantool.SelectResponse
	Interval       = datetime.Interval
	Pool           = pool.Pool
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
	Decimal    = decimal.NewDecimalFromString
	Datetime   = datetime.NewDatetime
)

const (
	IterAll = tarantool.IterAll
	IterGe  = tarantool.IterGe
	RW      = pool.ModeRW
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
		opts := tarantool.Opts{Timeout: 10 * time.Second}
		instances = append(instances, pool.Instance{
			Name: address, Dialer: dialer(address, user, password), Opts: opts})
	}
	return pool.NewWithOpts(ctx, instances, pool.Opts{CheckTimeout: 100 * time.Millisecond})
}
