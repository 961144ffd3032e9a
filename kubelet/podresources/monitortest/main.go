// SPDX-License-Identifier: Apache-2.0

// Command monitortest is a monitor of the node's devices, run in a pod that mounts /var/lib/kubelet/pod-resources: it
// prints what the PodResources API answers, a line for each device. Without arguments it waits. A script makes an
// image of it; nothing else runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	apiv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apiv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"keelson/kubelet/rootdir"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	if len(args) == 0 {
		<-ctx.Done()
		return nil
	}
	conn, err := grpc.NewClient("unix://"+rootdir.Standard+"/pod-resources/kubelet.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	api := apiv1.NewPodResourcesListerClient(conn)
	switch {
	case len(args) == 1 && args[0] == "list":
		got, err := api.List(ctx, &apiv1.ListPodResourcesRequest{})
		for _, p := range got.GetPodResources() {
			show(out, p)
		}
		return err
	case len(args) == 3 && args[0] == "get":
		got, err := api.Get(ctx, &apiv1.GetPodResourcesRequest{PodNamespace: args[1], PodName: args[2]})
		show(out, got.GetPodResources())
		return err
	case len(args) == 1 && args[0] == "allocatable":
		got, err := api.GetAllocatableResources(ctx, &apiv1.AllocatableResourcesRequest{})
		for _, d := range got.GetDevices() {
			tellDevice(out, "node", d)
		}
		return err
	case len(args) == 1 && args[0] == "v1alpha1":
		got, err := apiv1alpha1.NewPodResourcesListerClient(conn).List(ctx, &apiv1alpha1.ListPodResourcesRequest{})
		for _, p := range got.GetPodResources() {
			for _, c := range p.GetContainers() {
				for _, d := range c.GetDevices() {
					_, _ = fmt.Fprintf(out, "%s/%s/%s %s=%s\n", p.GetNamespace(), p.GetName(), c.GetName(),
						d.GetResourceName(), d.GetDeviceIds())
				}
			}
		}
		return err
	}
	return errors.New("usage: monitortest [list | get NAMESPACE POD | allocatable | v1alpha1]")
}

func show(out io.Writer, p *apiv1.PodResources) {
	for _, c := range p.GetContainers() {
		who := fmt.Sprintf("%s/%s/%s", p.GetNamespace(), p.GetName(), c.GetName())
		for _, d := range c.GetDevices() {
			tellDevice(out, who, d)
		}
		for _, claim := range c.GetDynamicResources() {
			for _, r := range claim.GetClaimResources() {
				_, _ = fmt.Fprintf(out, "%s claim %s/%s: %s/%s/%s", who, claim.GetClaimNamespace(),
					claim.GetClaimName(), r.GetDriverName(), r.GetPoolName(), r.GetDeviceName())
				for _, cdi := range r.GetCdiDevices() {
					_, _ = fmt.Fprintf(out, " %s", cdi.GetName())
				}
				_, _ = fmt.Fprintln(out)
			}
		}
	}
}

func tellDevice(out io.Writer, who string, d *apiv1.ContainerDevices) {
	_, _ = fmt.Fprintf(out, "%s %s=%s", who, d.GetResourceName(), d.GetDeviceIds())
	for _, n := range d.GetTopology().GetNodes() {
		_, _ = fmt.Fprintf(out, " numa=%d", n.GetID())
	}
	_, _ = fmt.Fprintln(out)
}
