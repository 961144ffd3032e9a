// SPDX-License-Identifier: Apache-2.0

// Package shim is the protocol between the runtime and the container supervisor of the node: the messages, their
// framing on a unix socket, and the Client. runtime/server uses the Client; the program keelson-shim, which serves it,
// uses the messages.
//
// The supervisor is one process per node, not one per pod as in containerd. It is the parent of all containers and
// outlives the main program. It knows nothing of Kubernetes: it gets an OCI spec, and reports when and how the process
// ended.
//
// Invariants:
//  1. An exit is written to the container's state file before it is reported.
//  2. A connection carries one call. Exec, Attach and Subscribe have several replies; closing an Exec's connection
//     kills its process.
//  3. File descriptors are sent with the message that names them; the receiver of a message owns them.
//  4. An upgrade loses no call: the supervisor answers every connection that it has accepted before it executes its new
//     program. New connections wait in the listening socket's queue. An upgrade does not wait for a Delete that waits
//     for a container's end, or for Subscribe and Attach: their connections are closed. The Client repeats Delete;
//     callers of the others call again.
package shim

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"keelson/lib/logrotate"
)

// Protocol is the version of the messages. A supervisor with another version is upgraded in place.
const Protocol = 1

// Names of files in the supervisor's directory.
const (
	SocketName = "shim.sock"
	LockName   = "shim.lock"
	LogName    = "shim.log"
	BinaryName = "keelson-shim"
	// ContainersDir holds one directory per container with StateName and its FIFOs.
	ContainersDir = "containers"
	StateName     = "state.json"
	// SettingsName holds the Settings last configured.
	SettingsName = "settings.json"
	// EmptyDir is where namespace holders mount their root directory, each in a mount namespace of its own.
	EmptyDir = "empty"
)

// WaitCommand is the argument with which the program only waits for the end of its standard input;
// linux.HoldUserNamespace needs it.
const WaitCommand = "wait"

// Verbs of the protocol.
const (
	VerbHello     = "hello"     // -> Hello
	VerbRun       = "run"       // Run -> State
	VerbHold      = "hold"      // Hold -> State
	VerbKill      = "kill"      // Kill
	VerbDelete    = "delete"    // ID
	VerbList      = "list"      // -> []State
	VerbState     = "state"     // ID -> State
	VerbExec      = "exec"      // Exec and fds -> Started, then Exited
	VerbAttach    = "attach"    // Attach and fds -> Attached with fds, then Exited when the container ended
	VerbReopen    = "reopen"    // ID
	VerbCloseIn   = "closein"   // ID
	VerbUpdate    = "update"    // Update
	VerbSubscribe = "subscribe" // -> []State, then State for each exit
	VerbUpgrade   = "upgrade"   // Upgrade -> nothing, before the new program takes over
	VerbConfigure = "configure" // Settings
	VerbQuit      = "quit"      // ends the supervisor; refused while containers run
)

// Request is the message of a client. Arg is the verb's argument.
type Request struct {
	Verb string          `json:"verb"`
	ID   string          `json:"id,omitempty"` // of a container
	Arg  json.RawMessage `json:"arg,omitempty"`
}

// Reply is the message of the supervisor. Code is empty, CodeNotFound, CodeNotRunning, CodeExists or CodeOther.
type Reply struct {
	Error string          `json:"error,omitempty"`
	Code  string          `json:"code,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Codes of errors.
const (
	CodeNotFound   = "notFound"
	CodeNotRunning = "notRunning"
	CodeExists     = "exists"
	CodeOther      = "other"
)

// Errors that a Client returns, wrapped.
var (
	ErrNotFound   = errors.New("no such container in the supervisor")
	ErrNotRunning = errors.New("container is not running")
	ErrExists     = errors.New("container exists already")
)

// Hello identifies the supervisor.
type Hello struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Binary   string `json:"binary"` // hex sha256 of the running program
}

// Run makes and starts a container.
type Run struct {
	Spec *specs.Spec `json:"spec"`
	// LogPath is the CRI log; empty: output is discarded.
	LogPath string `json:"logPath,omitempty"`
	// Stdin keeps standard input open for Attach; StdinOnce closes it when the first Attach that had it ends.
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`
}

// containerPrefix starts the path of PIDNamespaceOf.
const containerPrefix = "container:"

// PIDNamespaceOf returns a path, for Run's spec, that means the PID namespace of another container of the supervisor.
// The supervisor resolves it at the start. A path below /proc is not safe here: the pid may belong to another process
// by then.
func PIDNamespaceOf(id string) string { return containerPrefix + id }

// PIDNamespaceOwner returns the id that was given to PIDNamespaceOf.
func PIDNamespaceOwner(path string) (id string, ok bool) {
	return strings.CutPrefix(path, containerPrefix)
}

// Hold starts a process whose only purpose is to be process 1 of a new PID namespace. List returns it like a container.
type Hold struct {
	// Name is the process name that ps shows in the pod.
	Name string `json:"name"`
	// Namespaces are paths of the pod's other namespaces. The process joins them in this order.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Kill sends Signal to the container's first process or, with All, to every process in its cgroup.
type Kill struct {
	Signal int  `json:"signal"`
	All    bool `json:"all,omitempty"`
}

// Exec runs another process in a container. With Process.Terminal the message carries one socket, over which the
// terminal is sent; otherwise one descriptor for each of stdin, stdout and stderr that is true, in that order.
type Exec struct {
	Process *specs.Process `json:"process"`
	Stdin   bool           `json:"stdin,omitempty"`
	Stdout  bool           `json:"stdout,omitempty"`
	Stderr  bool           `json:"stderr,omitempty"`
}

// Started is the first reply to Exec.
type Started struct {
	PID int `json:"pid"`
}

// Exited is the last reply to Exec and Attach. Code is 128 plus the signal for a killed process.
type Exited struct {
	Code int `json:"code"`
}

// Attach connects to a running container's output: the message carries a writable descriptor for each of stdout and
// stderr that is true. The reply carries the writable end of stdin, or the terminal when the container has one.
type Attach struct {
	Stdin  bool `json:"stdin,omitempty"`
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
}

// Attached is the first reply to Attach. It says which descriptor it carries.
type Attached struct {
	Stdin    bool `json:"stdin,omitempty"`
	Terminal bool `json:"terminal,omitempty"`
}

// Update changes a running container's resources.
type Update struct {
	Resources *specs.LinuxResources `json:"resources"`
}

// Upgrade replaces the supervisor's program by the one in the file Path.
type Upgrade struct {
	Path string `json:"path"`
}

// Settings apply to all containers. The supervisor stores them on disk.
type Settings struct {
	Logs logrotate.Policy `json:"logs"`
}

// State is the supervisor's state of a container, and the content of its state file.
type State struct {
	ID  string `json:"id"`
	PID int    `json:"pid"`
	// of the process, in clock ticks since boot: with it a reused pid is recognized
	StartTime uint64    `json:"startTime"`
	Boot      string    `json:"boot"` // the kernel's boot id
	Started   time.Time `json:"started"`
	Exited    time.Time `json:"exited,omitzero"` // zero while it runs
	ExitCode  int       `json:"exitCode"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	// Lost: the process ended while no supervisor could read its exit code; ExitCode is then 255.
	Lost bool `json:"lost,omitempty"`
	Hold bool `json:"hold,omitempty"`

	Terminal  bool   `json:"terminal,omitempty"`
	Stdin     bool   `json:"stdin,omitempty"`
	StdinOnce bool   `json:"stdinOnce,omitempty"`
	LogPath   string `json:"logPath,omitempty"`
	// SharedPID: the container shares a PID namespace, so its other processes outlive its first one.
	SharedPID bool `json:"sharedPID,omitempty"`
	// Tracer: its processes may have CAP_SYS_PTRACE.
	Tracer bool `json:"tracer,omitempty"`
}

// Running reports whether the container's first process has not ended.
func (s *State) Running() bool { return s.Exited.IsZero() }
