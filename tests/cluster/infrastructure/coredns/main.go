// A CoreDNS with the plugins that the DNS of a cluster without a way out needs.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func init() {
	// The order in which plugins see a query: template answers for every name that kubernetes leaves.
	dnsserver.Directives = []string{"health", "ready", "log", "errors", "cache", "loadbalance", "kubernetes", "template"}
}

func main() {
	coremain.Run()
}
