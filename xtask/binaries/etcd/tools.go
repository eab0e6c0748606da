//go:build tools

// Package binaries pins the etcd that `cargo xtask cluster` runs.
package binaries

import _ "go.etcd.io/etcd/server/v3"
