// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Hello behaves like the built-in image's /hello: exit N, sleep S, echo WORDS and env work as their names say. No
// arguments, and any other command, run forever.
func Hello(config *runtimeapi.ContainerConfig) Program {
	words := slices.Concat(config.GetCommand(), config.GetArgs())
	if len(words) > 0 && words[0] == "/hello" {
		words = words[1:]
	}
	if len(words) == 0 {
		return Program{}
	}
	switch words[0] {
	case "exit":
		return Program{Exits: true, Code: number(words)}
	case "sleep":
		return Program{Exits: true, After: time.Duration(number(words)) * time.Second}
	case "echo":
		return Program{Exits: true, Output: []string{strings.Join(words[1:], " ")}}
	case "env":
		var out []string
		for _, e := range config.GetEnvs() {
			out = append(out, e.GetKey()+"="+string(e.GetValue()))
		}
		return Program{Exits: true, Output: out}
	}
	return Program{}
}

// HelloExec returns the result of an exec of the same commands.
func HelloExec(c *runtimeapi.ContainerConfig, cmd []string) ExecResult {
	if len(cmd) == 0 {
		return ExecResult{Err: fmt.Errorf("exec: no command")}
	}
	p := Hello(&runtimeapi.ContainerConfig{Command: cmd, Envs: c.GetEnvs()})
	if !p.Exits {
		return ExecResult{Stderr: []byte("exec: " + cmd[0] + ": not found\n"), Code: 127}
	}
	r := ExecResult{Code: p.Code, Takes: p.After}
	for _, line := range p.Output {
		r.Stdout = append(r.Stdout, line+"\n"...)
	}
	return r
}

func number(words []string) int32 {
	if len(words) < 2 {
		return 0
	}
	n, err := strconv.ParseInt(words[1], 10, 32)
	if err != nil {
		return 1
	}
	return int32(n)
}
