// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"keelson/kubelet/downward"
	"keelson/kubelet/podinfo"
	"keelson/lib/inroot"
)

// Sources reads the objects to which environment variables refer. Objects are shared: never modify them.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// EnvInput has the inputs of a container's environment besides its pod.
type EnvInput struct {
	Sources     Sources
	Services    []*corev1.Service // of the pod's namespace, and default/kubernetes
	Allocatable corev1.ResourceList
	PodIPs      []string
	HostIPs     []string
	// VolumeDir returns the host path of a volume of the pod, for fileKeyRef; empty: unknown.
	VolumeDir func(name string) string
	// Room has the bytes that the container may still have.
	Room *Room
}

// Env returns a container's environment. An error is a mistake in the pod or a missing object: the container waits with
// CreateContainerConfigError.
func Env(ctx context.Context, pod *corev1.Pod, container *corev1.Container, in EnvInput) (map[string]string, error) {
	services, err := ServiceEnv(pod, in.Services, in.Room)
	if err != nil {
		return nil, err
	}
	env := environment{vars: map[string]string{}, services: services, room: in.Room}
	for i := range container.EnvFrom {
		if err := env.from(ctx, pod, &container.EnvFrom[i], in.Sources); err != nil {
			return nil, err
		}
	}
	files := envFiles{dir: in.VolumeDir, room: in.Room}
	for i := range container.Env {
		e := &container.Env[i]
		if e.ValueFrom == nil {
			if err := env.expand(e); err != nil {
				return nil, err
			}
			continue
		}
		v, ok, err := valueFrom(ctx, pod, container, e.ValueFrom, in, &files)
		if err == nil && ok {
			err = env.set(e.Name, v)
		}
		if err != nil {
			return nil, err
		}
	}
	for k, v := range services {
		if _, ok := env.vars[k]; !ok {
			env.vars[k] = v
		}
	}
	return env.vars, nil
}

// environment is a container's environment while it is made. Services' variables stand behind all others and are
// counted already.
type environment struct {
	vars     map[string]string
	services map[string]string
	room     *Room
}

func (env *environment) set(name, value string) error {
	if err := env.room.variable(name, len(value)); err != nil {
		return err
	}
	env.vars[name] = value
	return nil
}

// setKey sets the variable of a key of an object. A key that cannot be a name sets none.
func (env *environment) setKey(name, value string) error {
	if name == "" || strings.Contains(name, "=") {
		return nil
	}
	return env.set(name, value)
}

// expand sets a variable with a value that may name earlier ones.
func (env *environment) expand(envVar *corev1.EnvVar) error {
	v, err := Expand(envVar.Value, max(maxString-len(envVar.Name)-len("=")-1, 0), func(name string) (string, bool) {
		if v, ok := env.vars[name]; ok {
			return v, true
		}
		v, ok := env.services[name]
		return v, ok
	})
	if err != nil {
		return fmt.Errorf("environment variable %s: %w, the kernel's limit", shorten(envVar.Name), err)
	}
	return env.set(envVar.Name, v)
}

// from adds the keys of an object.
func (env *environment) from(ctx context.Context, pod *corev1.Pod, from *corev1.EnvFromSource, src Sources) error {
	switch {
	case from.ConfigMapRef != nil:
		m, err := src.ConfigMap(ctx, pod.Namespace, from.ConfigMapRef.Name)
		if apierrors.IsNotFound(err) && from.ConfigMapRef.Optional != nil && *from.ConfigMapRef.Optional {
			return nil
		}
		if err != nil {
			return err
		}
		for k, v := range m.Data {
			if err := env.setKey(from.Prefix+k, v); err != nil {
				return err
			}
		}
	case from.SecretRef != nil:
		s, err := src.Secret(ctx, pod.Namespace, from.SecretRef.Name)
		if apierrors.IsNotFound(err) && from.SecretRef.Optional != nil && *from.SecretRef.Optional {
			return nil
		}
		if err != nil {
			return err
		}
		for k, v := range s.Data {
			if err := env.setKey(from.Prefix+k, string(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

func isTrue(b *bool) bool { return b != nil && *b }

func valueFrom(
	ctx context.Context, pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource, in EnvInput, files *envFiles,
) (string, bool, error) {
	switch {
	case from.FieldRef != nil:
		v, err := downward.Field(pod, from.FieldRef.FieldPath, in.PodIPs, in.HostIPs)
		return v, err == nil, err
	case from.ResourceFieldRef != nil:
		of := c
		if n := from.ResourceFieldRef.ContainerName; n != "" {
			if of, _ = podinfo.Find(pod, n); of == nil {
				return "", false, fmt.Errorf("container %s not found", n)
			}
		}
		v, err := downward.Resource(pod, of, from.ResourceFieldRef, in.Allocatable)
		return v, err == nil, err
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		m, err := in.Sources.ConfigMap(ctx, pod.Namespace, r.Name)
		if apierrors.IsNotFound(err) && isTrue(r.Optional) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		v, ok := m.Data[r.Key]
		if !ok && !isTrue(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", r.Key, pod.Namespace, r.Name)
		}
		return v, ok, nil
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		s, err := in.Sources.Secret(ctx, pod.Namespace, r.Name)
		if apierrors.IsNotFound(err) && isTrue(r.Optional) {
			return "", false, nil
		}
		if err != nil {
			return "", false, err
		}
		v, ok := s.Data[r.Key]
		if !ok && !isTrue(r.Optional) {
			return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", r.Key, pod.Namespace, r.Name)
		}
		return string(v), ok, nil
	case from.FileKeyRef != nil:
		return files.key(from.FileKeyRef)
	}
	return "", false, nil
}

// maxEnvFile is the limit for a file that fileKeyRef reads.
const maxEnvFile = 64 << 10

// envFiles reads the env files of a container. It keeps the last one, since the keys of one file mostly follow each
// other.
type envFiles struct {
	dir  func(volume string) string
	room *Room

	volume, path string
	last         envFile // without values: none
}

func (f *envFiles) key(selector *corev1.FileKeySelector) (string, bool, error) {
	if f.last.values == nil || f.volume != selector.VolumeName || f.path != selector.Path {
		text, err := f.read(selector)
		if errors.Is(err, fs.ErrNotExist) && isTrue(selector.Optional) {
			return "", false, nil
		}
		if err == nil {
			err = f.room.take(len(text))
		}
		if err != nil {
			return "", false, err
		}
		f.volume = selector.VolumeName
		f.path = selector.Path
		f.last = parseEnvFile(text)
	}
	v, ok := f.last.values[selector.Key]
	if !ok && f.last.err != nil {
		return "", false, fmt.Errorf("env file %q: %w", selector.Path, f.last.err)
	}
	if !ok && !isTrue(selector.Optional) {
		return "", false, fmt.Errorf("environment variable key %q not found in file %q", selector.Key, selector.Path)
	}
	return v, ok, nil
}

func (f *envFiles) read(selector *corev1.FileKeySelector) (string, error) {
	dir := f.dir(selector.VolumeName)
	if dir == "" {
		return "", fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", selector.VolumeName)
	}
	root, err := inroot.OpenBeneath(dir)
	if err != nil {
		return "", fmt.Errorf("open volume %s: %w", selector.VolumeName, err)
	}
	defer func() { _ = root.Close() }() // O_PATH
	b, err := root.ReadFile(selector.Path, maxEnvFile)
	if err != nil {
		return "", fmt.Errorf("read env file %s: %w", selector.Path, err)
	}
	return string(b), nil
}

// envFile has the values of an env file. An error ends the reading; the values before it count.
type envFile struct {
	values map[string]string
	err    error
}

// parseEnvFile reads NAME='value' lines, a part of what a shell takes (KEP-3721): values stand in single quotes and may
// span lines, blank lines and # comments are skipped, and NAME= 'value' is empty. Anything else is an error. The first
// value of a name counts.
func parseEnvFile(text string) envFile {
	out := envFile{values: map[string]string{}}
	for number := 1; text != "" && out.err == nil; number++ {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		line = strings.TrimLeft(strings.TrimSuffix(line, "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, err := assignment(line)
		if body, quoted := strings.CutPrefix(value, "'"); err == nil && quoted {
			begin := number
			for !strings.Contains(body, "'") && text != "" {
				line, text, _ = strings.Cut(text, "\n")
				body += "\n" + strings.TrimSuffix(line, "\r")
				number++
			}
			if value, err = unquoted(body); err != nil {
				number = begin
			}
		}
		if err != nil {
			out.err = fmt.Errorf("invalid environment variable format at line %d: %w", number, err)
		} else if _, ok := out.values[name]; !ok {
			out.values[name] = value
		}
	}
	return out
}

// assignment splits NAME='value at the equals sign; the value begins with a quote, or is empty.
func assignment(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, "=")
	switch {
	case !ok:
		return "", "", errors.New("missing '='")
	case strings.TrimRight(name, " \t") == "":
		return "", "", errors.New("empty variable name")
	case strings.TrimRight(name, " \t") != name:
		return "", "", errors.New("whitespace before '=' is not allowed")
	case strings.HasPrefix(value, " ") || strings.HasPrefix(value, "\t"):
		return name, "", nil // as in a shell, where a command follows
	case !strings.HasPrefix(value, "'"):
		return "", "", errors.New("value must be enclosed in single quotes")
	}
	return name, value, nil
}

// unquoted is what stands before the closing quote; only a comment may follow it.
func unquoted(body string) (string, error) {
	value, after, closed := strings.Cut(body, "'")
	if !closed {
		return "", errors.New("unclosed single quote")
	}
	if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
		return "", errors.New("unexpected content after closing quote")
	}
	return value, nil
}

// ServiceEnv returns the environment variables of Services: those of the pod's namespace if enableServiceLinks is
// set, and always those of the API server. It takes their bytes from room.
func ServiceEnv(pod *corev1.Pod, services []*corev1.Service, room *Room) (map[string]string, error) {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	env := map[string]string{}
	sorted := slices.SortedFunc(slices.Values(services), func(a, b *corev1.Service) int {
		// the pod's own namespace comes last and wins
		return strings.Compare(order(a, pod)+a.Name, order(b, pod)+b.Name)
	})
	for _, s := range sorted {
		master := s.Namespace == "default" && s.Name == "kubernetes"
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		if !master && (!links || s.Namespace != pod.Namespace) {
			continue
		}
		for name, value := range serviceVars(s) {
			if err := room.variable(name, len(value)); err != nil {
				return nil, fmt.Errorf("variables of Services: %w; or set enableServiceLinks to false", err)
			}
			env[name] = value
		}
	}
	return env, nil
}

func order(s *corev1.Service, p *corev1.Pod) string {
	if s.Namespace == p.Namespace {
		return "1"
	}
	return "0"
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

func serviceVars(s *corev1.Service) map[string]string {
	n := envName(s.Name)
	ip := s.Spec.ClusterIP
	first := s.Spec.Ports[0]
	out := map[string]string{
		n + "_SERVICE_HOST": ip,
		n + "_SERVICE_PORT": strconv.Itoa(int(first.Port)),
	}
	for i, port := range s.Spec.Ports {
		if port.Name != "" {
			out[n+"_SERVICE_PORT_"+envName(port.Name)] = strconv.Itoa(int(port.Port))
		}
		proto := strings.ToLower(string(port.Protocol))
		if proto == "" {
			proto = "tcp"
		}
		u := proto + "://" + net.JoinHostPort(ip, strconv.Itoa(int(port.Port)))
		prefix := fmt.Sprintf("%s_PORT_%d_%s", n, port.Port, strings.ToUpper(proto))
		if i == 0 {
			out[n+"_PORT"] = u
		}
		out[prefix] = u
		out[prefix+"_PROTO"] = proto
		out[prefix+"_PORT"] = strconv.Itoa(int(port.Port))
		out[prefix+"_ADDR"] = ip
	}
	return out
}
