//go:build tools

// Package binaries pins the CoreDNS that `cargo xtask cluster` runs.
package binaries

import _ "github.com/coredns/coredns"
