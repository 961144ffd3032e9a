// SPDX-License-Identifier: Apache-2.0

// Package shim is how the runtime talks to its helper program, the node's container supervisor: the messages, their
// framing on a unix socket, and the Client. runtime/server uses the Client; the helper (keelson-shim) shares the messages.
//
// The supervisor is one process per node. It owns all containers, outlives the main program, and knows nothing of
// Kubernetes: it is given an OCI spec and says when the process ended and how.
//
// Invariants:
//  1. An exit is in the container's state file before anyone is told of it.
//  2. A connection carries one call. Exec and Subscribe answer several times; closing an Exec's connection kills its process.
//  3. File descriptors travel with the message that names them; whoever receives a message owns them.
//  4. An upgrade loses no call: the supervisor accepts a connection only when it will answer it, and makes way for its new program
//     when every accepted call is answered. What comes meanwhile waits in the listening socket's queue for the new program. Delete,
//     while it waits for a container's end, Subscribe and Attach give way; the Client repeats Delete, the others' callers call again.
package shim

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"keelson/lib/logrotate"
)

// Protocol is the version of the messages. A supervisor that speaks another one is upgraded in place.
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

// WaitCommand makes the program do nothing until its standard input ends, as linux.HoldUserNamespace wants it.
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

// Request is what a client sends. Arg is the verb's argument.
type Request struct {
	Verb string          `json:"verb"`
	ID   string          `json:"id,omitempty"` // of a container
	Arg  json.RawMessage `json:"arg,omitempty"`
}

// Reply is what the supervisor answers. Code is empty, CodeNotFound, CodeNotRunning, CodeExists or CodeOther.
type Reply struct {
	Error string          `json:"error,omitempty"`
	Code  string          `json:"code,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Codes of errors that callers tell apart.
const (
	CodeNotFound   = "notFound"
	CodeNotRunning = "notRunning"
	CodeExists     = "exists"
	CodeOther      = "other"
)

// Errors that a Client's answers wrap.
var (
	ErrNotFound   = errors.New("no such container in the supervisor")
	ErrNotRunning = errors.New("container is not running")
	ErrExists     = errors.New("container exists already")
)

// Hello says who answers.
type Hello struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Binary   string `json:"binary"` // hex sha256 of the running program
}

// Run makes and starts a container.
type Run struct {
	Spec *specs.Spec `json:"spec"`
	// LogPath is the CRI log; empty throws output away.
	LogPath string `json:"logPath,omitempty"`
	// Stdin keeps standard input open for Attach; StdinOnce closes it when the first Attach that had it ends.
	Stdin     bool `json:"stdin,omitempty"`
	StdinOnce bool `json:"stdinOnce,omitempty"`
}

// containerPrefix begins the path of a PID namespace that is another container's.
const containerPrefix = "container:"

// PIDNamespaceOf is the path, in Run's spec, of the PID namespace of another container of the supervisor. It is looked up at the start, and
// is that container's or the start fails: a path below /proc would lead to whichever process has the number by then.
func PIDNamespaceOf(id string) string { return containerPrefix + id }

// PIDNamespaceOwner undoes PIDNamespaceOf.
func PIDNamespaceOwner(path string) (id string, ok bool) {
	return strings.CutPrefix(path, containerPrefix)
}

// Hold starts a process that does nothing but be process 1 of a new PID namespace. It is listed like a container.
type Hold struct {
	// Name is shown by ps within the pod.
	Name string `json:"name"`
	// Namespaces are paths of the pod's other namespaces, which the process joins in this order, so that it is in none of the host's.
	Namespaces []string `json:"namespaces,omitempty"`
}

// Kill sends Signal to the container's first process, with All to every process in its cgroup.
type Kill struct {
	Signal int  `json:"signal"`
	All    bool `json:"all,omitempty"`
}

// Exec runs a further process in a container. With Process.Terminal the message carries one socket that is sent the
// terminal; otherwise one descriptor for each of stdin, stdout and stderr that is true here, in that order.
type Exec struct {
	Process *specs.Process `json:"process"`
	Stdin   bool           `json:"stdin,omitempty"`
	Stdout  bool           `json:"stdout,omitempty"`
	Stderr  bool           `json:"stderr,omitempty"`
}

// Started is the first answer to Exec.
type Started struct {
	PID int `json:"pid"`
}

// Exited is the last answer to Exec and Attach. Code is 128 plus the signal for a killed process.
type Exited struct {
	Code int `json:"code"`
}

// Attach connects to a running container's output: the message carries a writable descriptor for each of stdout and
// stderr that is true. The answer carries the writable end of stdin, or the terminal when the container has one.
type Attach struct {
	Stdin  bool `json:"stdin,omitempty"`
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
}

// Attached says which descriptor came along.
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

// Settings are what all containers have in common. The supervisor keeps them on disk.
type Settings struct {
	Logs logrotate.Policy `json:"logs"`
}

// State is what the supervisor knows of a container; its state file holds the same.
type State struct {
	ID        string    `json:"id"`
	PID       int       `json:"pid"`
	StartTime uint64    `json:"startTime"` // of the process, in clock ticks since boot, so that a pid cannot mislead
	Boot      string    `json:"boot"`      // the kernel's boot id
	Started   time.Time `json:"started"`
	Exited    time.Time `json:"exited,omitzero"` // zero while it runs
	ExitCode  int       `json:"exitCode"`
	OOMKilled bool      `json:"oomKilled,omitempty"`
	// Lost tells that the process ended while no supervisor could learn its exit code; ExitCode is then 255.
	Lost bool `json:"lost,omitempty"`
	Hold bool `json:"hold,omitempty"`

	Terminal  bool   `json:"terminal,omitempty"`
	Stdin     bool   `json:"stdin,omitempty"`
	StdinOnce bool   `json:"stdinOnce,omitempty"`
	LogPath   string `json:"logPath,omitempty"`
	// SharedPID tells that the container's processes do not end with its first one.
	SharedPID bool `json:"sharedPID,omitempty"`
	// Tracer tells that its processes may have CAP_SYS_PTRACE.
	Tracer bool `json:"tracer,omitempty"`
}

// Running tells whether the container's first process has not ended.
func (s *State) Running() bool { return s.Exited.IsZero() }
