// SPDX-License-Identifier: Apache-2.0

// Plugintest is a device plugin for tests, run in a pod: it offers two devices of the resource it is told, and gives each container that gets
// one an environment variable and a mount. It has no hardware.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plugintest RESOURCE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // the process ends
	}
}

// run serves until ctx ends.
func run(ctx context.Context, resource string) error {
	const socket = "plugintest.sock"
	path := filepath.Join(pluginapi.DevicePluginPath, socket)
	_ = os.Remove(path) // of an earlier life
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, plugin{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // until Stop
	defer s.Stop()
	conn, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	q := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: resource}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(ctx, q, grpc.WaitForReady(true)); err != nil {
		return err
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}

type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	near := &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}}}
	list := []*pluginapi.Device{{ID: "card-0", Health: pluginapi.Healthy, Topology: near}, {ID: "card-1", Health: pluginapi.Healthy, Topology: near}}
	if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

// Allocate mounts the node's /etc: it is there.
func (plugin) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range q.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
			Envs:   map[string]string{"CARDS": strings.Join(c.GetDevicesIds(), ",")},
			Mounts: []*pluginapi.Mount{{ContainerPath: "/card", HostPath: "/etc", ReadOnly: true}},
		})
	}
	return out, nil
}
