// SPDX-License-Identifier: Apache-2.0

// Command drivertest runs the DRA driver of dratest in a pod, with its registrar in the same process. It reads claims as its pod's service
// account, and writes to /var/run/cdi. A script makes an image of it; nothing else runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"

	"keelson/kubelet/dra/dratest"
	"keelson/kubelet/rootdir"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: drivertest NAME")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	api, err := resourceclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	d := &dratest.Driver{
		Name: args[0], Kubelet: rootdir.Standard, Named: rootdir.Standard, CDI: "/var/run/cdi",
		Claim: func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			return api.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
	return d.Serve(ctx)
}
