// SPDX-License-Identifier: Apache-2.0

// Command drivertest runs the DRA driver of dratest in a pod, with its registrar in the same process. It reads claims
// as its pod's service account, and writes to /var/run/cdi. Called as "sick POOL DEVICE MESSAGE" in its container it
// makes a device unhealthy. A script makes an image of it; nothing else runs it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/rest"
	healthapi "k8s.io/kubelet/pkg/apis/dra-health/v1"

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
	if len(args) == 4 && args[0] == "sick" {
		return makeSick(args[1:])
	}
	if len(args) != 1 {
		return fmt.Errorf("usage: drivertest NAME, or drivertest sick POOL DEVICE MESSAGE")
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
	driver := &dratest.Driver{
		Name:    args[0],
		Kubelet: rootdir.Standard,
		Named:   rootdir.Standard,
		CDI:     "/var/run/cdi",
		Claim: func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			return api.ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop() // for the next
	wg.Go(func() { reportSick(ctx, driver, hangup) })
	return driver.Serve(ctx)
}

// sickFile says which device is unhealthy, and why, for the driver, which is process 1 of its container.
const sickFile = "/sick"

func makeSick(args []string) error {
	if err := os.WriteFile(sickFile, []byte(strings.Join(args, "\n")), 0o600); err != nil {
		return err
	}
	return unix.Kill(1, unix.SIGHUP)
}

func reportSick(ctx context.Context, d *dratest.Driver, hangup <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
		}
		b, err := os.ReadFile(sickFile)
		if f := strings.SplitN(string(b), "\n", 3); err == nil && len(f) == 3 {
			d.Report(&healthapi.DeviceHealth{
				Device:  &healthapi.DeviceIdentifier{PoolName: f[0], DeviceName: f[1]},
				Health:  healthapi.HealthStatus_UNHEALTHY,
				Message: f[2],
			})
		}
	}
}
