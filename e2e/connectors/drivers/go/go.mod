module driver

go 1.24.0

require (
	github.com/google/uuid v1.6.0
	github.com/tarantool/go-tarantool/v2 v2.4.1
	github.com/tarantool/go-tarantool/v3 v3.0.2
)

require (
	github.com/shopspring/decimal v1.3.1 // indirect
	github.com/tarantool/go-iproto v1.1.0 // indirect
	github.com/tarantool/go-option v1.1.0 // indirect
	github.com/vmihailenco/msgpack/v5 v5.4.1 // indirect
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
)
