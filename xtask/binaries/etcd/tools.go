//go:build tools

// Package binaries pins the etcd that `cargo xtask cluster` runs, and its tools.
package binaries

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
