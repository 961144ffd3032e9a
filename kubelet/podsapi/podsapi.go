// SPDX-License-Identifier: Apache-2.0

// Package podsapi serves the Pods API (KEP-4188): programs on the node ask it which pods the node has, and follow
// their changes, also while the API server cannot be reached. It listens on pods-api/pods-api.sock of the kubelet's
// directory. The kubelet runs one Server; nothing here changes a pod.
//
// Only root can connect, and requests are limited to 100 a second as in Kubernetes.
package podsapi

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"keelson/kubelet/nodesocket"
	"keelson/kubelet/rootdir"
)

const (
	socketDir = "pods-api" // within the kubelet's directory
	socket    = "pods-api.sock"
	// queriesPerSecond and burst are Kubernetes' limits of all requests together.
	queriesPerSecond = 100
	burst            = 100
	maxRequest       = 64 << 10
	maxResponse      = 64 << 20 // of all pods of a node
	maxStreams       = 16
	connectTimeout   = 10 * time.Second
)

// Pods are the node's pods.
type Pods interface {
	// Ready reports whether all sources of pods have been read once.
	Ready() bool
	// All returns the pods with their status. They are shared: never modify them.
	All() []*corev1.Pod
	// Changed returns a channel that is closed at the next change of a pod.
	Changed() <-chan struct{}
}

// Server is made by New.
type Server struct {
	podsv1alpha1.UnimplementedPodsServer
	dir     rootdir.Dir
	pods    Pods
	limiter *rate.Limiter
	metrics
}

// New returns a server with its socket in the kubelet's directory. It starts nothing.
func New(dir rootdir.Dir, pods Pods) *Server {
	return &Server{
		dir:     dir,
		pods:    pods,
		limiter: rate.NewLimiter(queriesPerSecond, burst),
		metrics: newMetrics(),
	}
}

// Run serves until ctx is done. The socket is removed then.
func (s *Server) Run(ctx context.Context) error {
	listener, err := nodesocket.Listen(s.dir, socketDir, socket)
	if err != nil {
		return fmt.Errorf("pods api: %w", err)
	}
	server := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxResponse), grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true), grpc.ConnectionTimeout(connectTimeout),
		grpc.UnaryInterceptor(s.countUnary), grpc.StreamInterceptor(s.countStream),
	)
	podsv1alpha1.RegisterPodsServer(server, s)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); err != nil && ctx.Err() == nil {
		return fmt.Errorf("pods api: serve: %w", err)
	}
	return nil
}

// begin rejects requests above the rate, and those that come before the pods are known.
func (s *Server) begin() error {
	if !s.limiter.Allow() {
		return grpcstatus.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	if !s.pods.Ready() {
		return grpcstatus.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	return nil
}

// ListPods returns all pods.
func (s *Server) ListPods(context.Context, *podsv1alpha1.ListPodsRequest) (*podsv1alpha1.ListPodsResponse, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	out := &podsv1alpha1.ListPodsResponse{}
	for _, p := range s.pods.All() {
		b, err := encode(p)
		if err != nil {
			return nil, err
		}
		out.Pods = append(out.Pods, b)
	}
	return out, nil
}

// GetPod returns the pod with this UID.
func (s *Server) GetPod(
	_ context.Context, request *podsv1alpha1.GetPodRequest,
) (*podsv1alpha1.GetPodResponse, error) {
	if err := s.begin(); err != nil {
		return nil, err
	}
	for _, p := range s.pods.All() {
		if string(p.UID) == request.GetPodUID() {
			b, err := encode(p)
			return &podsv1alpha1.GetPodResponse{Pod: b}, err
		}
	}
	return nil, grpcstatus.Errorf(codes.NotFound, "pod with UID %.100s not found", request.GetPodUID())
}

// WatchPods sends the pods, the end of them, and then their changes. It compares versions of objects, so a client that
// reads slowly misses versions between, and no pod.
func (s *Server) WatchPods(
	_ *podsv1alpha1.WatchPodsRequest, stream grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent],
) error {
	if err := s.begin(); err != nil {
		return err
	}
	sent := map[types.UID]*corev1.Pod{}
	for first := true; ; first = false {
		changed := s.pods.Changed() // before the pods are read: no change is missed
		events, now := compare(sent, s.pods.All())
		if first {
			events = append(events, event{kind: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE})
		}
		for _, e := range events {
			message := &podsv1alpha1.WatchPodsEvent{Type: e.kind}
			if e.pod != nil {
				b, err := encode(e.pod)
				if err != nil {
					return err
				}
				message.Pod = b
			}
			if err := stream.Send(message); err != nil {
				return err
			}
		}
		sent = now
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func encode(p *corev1.Pod) ([]byte, error) {
	b, err := p.Marshal()
	if err != nil {
		return nil, grpcstatus.Errorf(codes.Internal, "encode pod %s/%s: %v", p.Namespace, p.Name, err)
	}
	return b, nil
}
