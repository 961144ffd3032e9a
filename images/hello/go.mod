// The program of the built-in image is a module of its own, so that its libraries are not the cluster's.
module keelson/images/hello

go 1.26.6

require (
	github.com/prometheus-community/pro-bing v0.9.1
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/net v0.58.0
	golang.org/x/sys v0.48.0
	golang.org/x/term v0.45.0
	mvdan.cc/sh/v3 v3.14.1
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sync v0.21.0 // indirect
)
