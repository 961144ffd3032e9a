// SPDX-License-Identifier: Apache-2.0

// Package client is the only door to the API server for every agent: clientsets
// and shared informers, over HTTPS or inside the process. An agent written
// against a *Client does not know which (P2).
package client

import (
	"context"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Source hands out the server's own cached objects, for in-process list-watch without encoding. Objects are shared:
// never modify them (P4).
type Source interface {
	List(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) ([]runtime.Object, string, error)
	Watch(
		ctx context.Context, gvr schema.GroupVersionResource, namespace string, opts metav1.ListOptions,
	) (watch.Interface, error)
}

// Client is one identity's access to the cluster.
type Client struct {
	Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Config can make further clients; its rate limits are off. In process its Transport is the in-memory one.
	Config *rest.Config

	source Source
}

// Remote connects over HTTPS as cfg says, with protobuf where a type allows and without client-side rate limits.
func Remote(cfg *rest.Config, userAgent string) (*Client, error) {
	c := rest.CopyConfig(cfg)
	c.UserAgent = userAgent
	return build(c, nil)
}

// InProcess calls h directly: requests pass through the same pipeline as a remote client's, over an in-memory
// transport. h must already speak for one user (the server's As). source may be nil: informers then list and watch
// through h.
func InProcess(h http.Handler, source Source, userAgent string) (*Client, error) {
	c, err := build(&rest.Config{Host: "https://" + inProcessHost, Transport: transport{h}, UserAgent: userAgent},
		source)
	if err != nil {
		return nil, err
	}
	c.Interface = inProcess{plain{c.Interface}, &direct{h, []string{userAgent}}}
	return c, nil
}

func build(config *rest.Config, source Source) (*Client, error) {
	config.QPS = -1 // the server protects itself
	json := rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", config.Host, err)
	}
	dyn, err := dynamic.NewForConfig(json)
	if err != nil {
		return nil, fmt.Errorf("dynamic client for %s: %w", config.Host, err)
	}
	md, err := metadata.NewForConfig(metadata.ConfigFor(json))
	if err != nil {
		return nil, fmt.Errorf("metadata client for %s: %w", config.Host, err)
	}
	return &Client{
		Interface: plain{cs},
		Dynamic:   dyn,
		Metadata:  md,
		Config:    json,
		source:    source,
	}, nil
}
