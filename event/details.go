// SPDX-License-Identifier: Apache-2.0

package event

import "time"

// Step names a hand-off in the life of an object.
type Step string

// The steps, in the order a pod made by a ReplicaSet meets them, each with the type of its Detail.
const (
	StepRequest Step = "request" // *Request: a write was served by the API server
	// StepDelivery has a *Delivery: the API server handed a change of the store to a watcher
	StepDelivery  Step = "delivery"
	StepReconcile Step = "reconcile" // *Reconcile: a controller acted on its object
	StepQueued    Step = "queued"    // *Queued: the scheduler saw the pod
	// StepDecision has a *decisions.Attempt of api: one scheduling attempt
	StepDecision Step = "decision"
	StepBind     Step = "bind"    // *Bind: the scheduler wrote pods/binding
	StepSeen     Step = "seen"    // *Seen: the kubelet saw the pod
	StepVolumes  Step = "volumes" // *Volumes: volumes are ready
	StepNetwork  Step = "network" // *Network: the pod has its addresses
	// StepPolicy has a *Policy: the network policies that isolate the pod are in its node's kernel
	StepPolicy Step = "policy"
	// StepSandbox has a *Sandbox: the pod sandbox runs (includes StepNetwork when the runtime reports it)
	StepSandbox          Step = "sandbox"
	StepImage            Step = "image"            // *Image: an image is present, or a pull moved on
	StepContainerCreated Step = "containerCreated" // *Container
	StepContainerStarted Step = "containerStarted" // *Container
	StepContainerExited  Step = "containerExited"  // *Container
	StepProbe            Step = "probe"            // *Probe: a probe's result changed
	StepStatus           Step = "status"           // *Status: the kubelet wrote pods/status
	StepReady            Step = "ready"            // *Status: first write with Ready true
	// StepEndpoint has an *Endpoint: an EndpointSlice lists the pod as ready, and did not before
	StepEndpoint  Step = "endpoint"
	StepReachable Step = "reachable" // *Reachable: a Service leads to the pod, on one node
	// StepEviction has an *Eviction: it is known when a taint of the pod's node will end the pod, or that it will not
	StepEviction Step = "eviction"
	// StepResolvable has a *Resolvable: a node's DNS server answers for a service's name for the first time
	StepResolvable Step = "resolvable"
	StepTerminated Step = "terminated" // *Status: the pod's containers are gone from the node
)

// details are the types of this package. The owner of other types passes them to Decode.
var details = map[Step]func() any{
	StepRequest:          func() any { return new(Request) },
	StepDelivery:         func() any { return new(Delivery) },
	StepReconcile:        func() any { return new(Reconcile) },
	StepQueued:           func() any { return new(Queued) },
	StepBind:             func() any { return new(Bind) },
	StepSeen:             func() any { return new(Seen) },
	StepVolumes:          func() any { return new(Volumes) },
	StepNetwork:          func() any { return new(Network) },
	StepPolicy:           func() any { return new(Policy) },
	StepSandbox:          func() any { return new(Sandbox) },
	StepImage:            func() any { return new(Image) },
	StepContainerCreated: func() any { return new(Container) },
	StepContainerStarted: func() any { return new(Container) },
	StepContainerExited:  func() any { return new(Container) },
	StepProbe:            func() any { return new(Probe) },
	StepStatus:           func() any { return new(Status) },
	StepReady:            func() any { return new(Status) },
	StepEndpoint:         func() any { return new(Endpoint) },
	StepReachable:        func() any { return new(Reachable) },
	StepEviction:         func() any { return new(Eviction) },
	StepResolvable:       func() any { return new(Resolvable) },
	StepTerminated:       func() any { return new(Status) },
}

// Request is one API write with the time each stage took. Durations are zero for stages that did not run.
type Request struct {
	Verb        string `json:"verb"` // HTTP method
	Group       string `json:"group,omitempty"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	User        string `json:"user"`
	UserAgent   string `json:"userAgent,omitempty"`
	AuditID     string `json:"auditID"`
	Code        int    `json:"code"`
	// Revision is the store's, 0 when nothing was stored.
	Revision int64  `json:"revision,omitempty"`
	Key      string `json:"key,omitempty"`
	// Owner is the controlling owner's UID, so that a pod's story can start at its ReplicaSet.
	OwnerUID string `json:"ownerUID,omitempty"`
	// MirrorOf is the UID of the static pod of a mirror pod, which the kubelet uses for it.
	MirrorOf string `json:"mirrorOf,omitempty"`
	// Status is what a write of a pod's status changed; nil: nothing that people follow.
	Status *StatusChange `json:"status,omitempty"`
	// AuthnHow is how the user proved who they are ("client certificate"), Groups are those that the proof gave.
	// Shared: never modified.
	AuthnHow string   `json:"authnHow,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	// AuthzWhy is the authorizer's reason for allowing the request, Grant the binding behind it if RBAC allowed it.
	// Shared: never modified.
	AuthzWhy string `json:"authzWhy,omitempty"`
	Grant    *Grant `json:"grant,omitempty"`
	// AdmissionChanged is what plugins and webhooks changed; AdmissionAccepted counts the plugins that left the
	// object unchanged.
	AdmissionChanged  []Change      `json:"admissionChanged,omitempty"`
	AdmissionAccepted int           `json:"admissionAccepted,omitempty"`
	Authn             time.Duration `json:"authn,omitempty"`
	Authz             time.Duration `json:"authz,omitempty"`
	Decode            time.Duration `json:"decode,omitempty"`
	Admission         time.Duration `json:"admission,omitempty"`
	Default           time.Duration `json:"default,omitempty"`
	Validate          time.Duration `json:"validate,omitempty"`
	// Queue is how long the request waited for its turn because of too many others. AdmissionSlow is the webhook whose
	// answer took longest, with how long that was.
	Queue         time.Duration `json:"queue,omitempty"`
	AdmissionSlow string        `json:"admissionSlow,omitempty"`
	Store         time.Duration `json:"store,omitempty"`
	Sync          time.Duration `json:"sync,omitempty"` // part of Store spent waiting for the disk
}

// StatusChange is the part of a write of pods/status that people follow. Fields are empty where nothing changed.
// Clients may write texts of any length: the maker shortens them.
type StatusChange struct {
	// From and To are the phases, if the phase changed; Reason and Message are those of the new status then.
	From    string `json:"from,omitempty"`
	To      string `json:"to,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Nominated is the node that is prepared for the pod.
	Nominated string `json:"nominated,omitempty"`
	// Ready is the new status of the condition ("True", "False"), if the phase is the same; NotReady its reason.
	Ready    string `json:"ready,omitempty"`
	NotReady string `json:"notReady,omitempty"`
	// Disruption is why the pod is to leave, Unscheduled why it has no node.
	Disruption  string `json:"disruption,omitempty"`
	Unscheduled string `json:"unscheduled,omitempty"`
	// Waiting are a few containers that wait for a new reason, by name.
	Waiting []Waiting `json:"waiting,omitempty"`
}

// Waiting is a container that waits, and why.
type Waiting struct {
	Container string `json:"container"`
	Reason    string `json:"reason"`
}

// Grant is a binding of RBAC's, the role it binds, and which of its subjects the user is.
type Grant struct {
	Binding Ref `json:"binding"` // a ClusterRoleBinding or RoleBinding
	Role    Ref `json:"role"`    // a ClusterRole or Role
	Subject Ref `json:"subject"` // a User, Group or ServiceAccount
}

// Ref names an object. Namespace is empty where there is none.
type Ref struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Change is a field of an object ("spec.tolerations") and who changed it.
type Change struct {
	By    string `json:"by"`
	Field string `json:"field"`
}

// Delivery is a watch event that was sent to a watcher. The mark's At is when the API server got the change from the
// store, Took the time from then until it was sent.
type Delivery struct {
	Event    string `json:"event"` // ADDED, MODIFIED, DELETED
	Revision int64  `json:"revision"`
	To       string `json:"to"` // the watcher's user
	// Watches is the request of the watcher ("pods, spec.nodeName=node-1").
	Watches string `json:"watches,omitempty"`
}

// Reconcile is one pass of a controller that changed something.
type Reconcile struct {
	Controller string    `json:"controller"`
	EventSeen  time.Time `json:"eventSeen"` // when the informer delivered the change that led here
	Wants      int       `json:"wants"`
	Has        int       `json:"has"`
	Creates    []string  `json:"creates,omitempty"` // names, at most 10
	Deletes    []string  `json:"deletes,omitempty"` // names, at most 10
	// Because says why the controller acts though it has what it wants: "1 with the new template".
	Because string   `json:"because,omitempty"`
	Scales  []string `json:"scales,omitempty"` // sets whose number changes: "web-5bd7 from 1 to 2"
}

// Queued is the reason why the pod entered the scheduler's queue.
type Queued struct {
	Why string `json:"why"` // the event: "PodAdd", "NodeAdd", ...
}

// Bind is the write of pods/binding. The mark's Took is PreBind and the write; Reserve and Permit came before.
type Bind struct {
	Node    string        `json:"node"`
	Reserve time.Duration `json:"reserve,omitempty"`
	Permit  time.Duration `json:"permit,omitempty"`
	PreBind time.Duration `json:"preBind,omitempty"`
}

// Seen means that the kubelet has got the pod for the first time.
type Seen struct {
	Source string `json:"source"`         // api, file, simulator: a fake node's, which runs nothing
	File   string `json:"file,omitempty"` // of a static pod's manifest
}

// Volumes counts the pod's volumes.
type Volumes struct {
	Count int `json:"count"`
}

// Network holds the pod's addresses.
type Network struct {
	IPs         []string `json:"ips,omitempty"`
	HostNetwork bool     `json:"hostNetwork,omitempty"`
	// CNI is the network's name where CNI plugins connect pods; Plugins are those that ran.
	CNI     string   `json:"cni,omitempty"`
	Plugins []Plugin `json:"plugins,omitempty"`
}

// Plugin is one run of a CNI plugin.
type Plugin struct {
	Name    string        `json:"name"`
	Command string        `json:"command"`
	Took    time.Duration `json:"took"`
}

// Policy names the policies (namespace/name) that isolate a pod, by direction.
type Policy struct {
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
}

// Sandbox names the pod sandbox.
type Sandbox struct {
	ID      string `json:"id"`
	Attempt uint32 `json:"attempt"`
}

// Image is an image that is present already (Present), or a pull in progress.
type Image struct {
	Container string `json:"container"`
	Image     string `json:"image"`
	Present   bool   `json:"present"`
	Bytes     int64  `json:"bytes,omitempty"` // transferred so far
	Total     int64  `json:"total,omitempty"` // 0 when unknown
	Done      bool   `json:"done,omitempty"`
}

// Container is a container's creation, start or end.
type Container struct {
	Name     string `json:"name"`
	ID       string `json:"id,omitempty"`
	Init     bool   `json:"init,omitempty"`
	Restart  int    `json:"restart,omitempty"` // 0 for the first run
	ExitCode int    `json:"exitCode,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Probe is a changed probe result.
type Probe struct {
	Container string `json:"container"`
	Kind      string `json:"kind"`   // readiness, liveness, startup
	Action    string `json:"action"` // "http :80/", "tcp :80", "exec cat /x"
	Success   bool   `json:"success"`
	Output    string `json:"output,omitempty"` // "200", "connection refused"; at most 256 bytes
}

// Status is a write of pods/status.
type Status struct {
	From  string `json:"from,omitempty"` // phase before
	To    string `json:"to"`             // phase after
	Ready bool   `json:"ready"`
}

// Endpoint is an EndpointSlice that lists a pod as ready. The mark's At and Took are those of the write.
type Endpoint struct {
	Service  string `json:"service,omitempty"` // empty: the slice names none
	Slice    string `json:"slice"`
	Revision int64  `json:"revision"`
}

// Reachable means that a node's rules forward a Service to the pod.
type Reachable struct {
	Service  string `json:"service"`
	Node     string `json:"node"`
	Front    string `json:"front"`    // the cluster IP and port
	Endpoint string `json:"endpoint"` // the pod's address and port
}

// Eviction is the effect of a NoExecute taint of a node on one of its pods.
type Eviction struct {
	Node      string        `json:"node"`
	Taint     string        `json:"taint,omitempty"`     // key=value:effect
	Tolerated time.Duration `json:"tolerated,omitempty"` // how long the pod tolerates it; 0: not at all
	Deadline  time.Time     `json:"deadline,omitzero"`   // when the pod will be deleted
	Cancelled bool          `json:"cancelled,omitempty"` // the taint is gone, or tolerated forever: the pod stays
}

// Resolvable is a Service name that a DNS server resolves now.
type Resolvable struct {
	Node string `json:"node,omitempty"` // whose server answers; empty: a server of no node
	Name string `json:"name"`           // complete
}
