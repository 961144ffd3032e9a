// SPDX-License-Identifier: Apache-2.0

// Plugintest is a device plugin for tests, run in a pod: it offers two devices of the resource it is given, and gives
// each container that gets one an environment variable and a mount. It has no hardware. Called as "sick ID..." in its
// container it makes those devices unhealthy, and all others healthy.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "sick" {
		if err := makeSick(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plugintest RESOURCE, or plugintest sick ID...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) // the process ends
	}
}

// sickFile names the devices that are unhealthy, for the plugin, which is process 1 of its container.
const sickFile = "/sick"

func makeSick(ids []string) error {
	if err := os.WriteFile(sickFile, []byte(strings.Join(ids, " ")), 0o600); err != nil {
		return err
	}
	return syscall.Kill(1, syscall.SIGHUP)
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
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	pluginapi.RegisterDevicePluginServer(s, plugin{sick: hangup})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // until Stop
	defer s.Stop()
	conn, err := grpc.NewClient("unix://"+pluginapi.KubeletSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
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
	sick <-chan os.Signal // other devices are unhealthy
}

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p plugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	near := &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 0}}}
	for {
		sick, _ := os.ReadFile(sickFile) // without it all are healthy
		var list []*pluginapi.Device
		for _, id := range []string{"card-0", "card-1"} {
			d := &pluginapi.Device{ID: id, Health: pluginapi.Healthy, Topology: near}
			if slices.Contains(strings.Fields(string(sick)), id) {
				d.Health = pluginapi.Unhealthy
			}
			list = append(list, d)
		}
		if err := s.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
			return err
		}
		select {
		case <-p.sick:
		case <-s.Context().Done():
			return nil
		}
	}
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
