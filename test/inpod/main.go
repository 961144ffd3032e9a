// SPDX-License-Identifier: Apache-2.0

// Command inpod is what runs in the pod of scripts/proxies.txtar: an application that is a client of its cluster, by
// client-go's in-cluster configuration, and a server behind Services and proxies. "inpod list" prints the names of its
// namespace's pods; "inpod" serves: each request is echoed, over HTTP on port 8080 and HTTPS on 8443, and /ws is a
// websocket. "inpod mtls serve DIR" and "inpod mtls get DIR URL" are the two sides of mutual TLS (trust.txtar). It is
// no part of Keelson.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = serve()
	case len(args) == 3 && args[0] == "mtls" && args[1] == "serve":
		err = serveMutual(args[2])
	case len(args) == 4 && args[0] == "mtls" && args[1] == "get":
		err = getMutual(args[2], args[3])
	default:
		err = list()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// list asks the API server, as any controller in a pod does.
func list() error {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	// The name in place of the address: the certificate has both.
	cfg.Host = strings.Replace(cfg.Host, os.Getenv("KUBERNETES_SERVICE_HOST"), "kubernetes.default.svc", 1)
	cl, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ns, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	pods, err := cl.CoreV1().Pods(string(ns)).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if _, err := fmt.Println(pods.Items[i].Name); err != nil { //nolint:forbidigo // a program of its own
			return err
		}
	}
	return nil
}

func serve() error {
	cert, err := certificate()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", echo)
	mux.HandleFunc("/ws", greet)
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/here", http.StatusFound)
	})
	plain := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	secure := &http.Server{
		Addr:              ":8443",
		Handler:           mux,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{cert}},
	}
	ended := make(chan error, 2)
	go func() { ended <- plain.ListenAndServe() }()           // ends with the process
	go func() { ended <- secure.ListenAndServeTLS("", "") }() // ends with the process
	return errors.Join(<-ended)
}

// echo answers with the request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	how := "http"
	if r.TLS != nil {
		how = "https"
	}
	_, _ = fmt.Fprintf(w, "inpod %s %s %s?%s %s\n", how, r.Method, r.URL.Path, r.URL.RawQuery, body)
}

// greet is a websocket: it greets and closes.
func greet(w http.ResponseWriter, r *http.Request) {
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer func() { _ = c.Close() }()
	_ = c.WriteMessage(websocket.BinaryMessage, []byte("hello from a websocket"))
	_ = c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"inpod"},
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
