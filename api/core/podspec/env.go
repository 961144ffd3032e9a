// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"

	"keelson/api/internal/check"
)

func (c *containers) env(ctr *corev1.Container) {
	c.In("env")
	for i := range ctr.Env {
		e := &ctr.Env[i]
		c.Index(i)
		check.NeedsForm(c.List, "name", e.Name, c.EnvName)
		if e.ValueFrom != nil {
			c.In("valueFrom")
			c.envSource(e)
			c.Out()
		}
		c.Out()
	}
	c.Out()
}

func (c *containers) envSource(envVar *corev1.EnvVar) {
	from := envVar.ValueFrom
	n := 0
	if from.FieldRef != nil {
		n++
		c.In("fieldRef")
		checkFieldRef(c.List, from.FieldRef, envFields)
		c.Out()
	}
	if from.ResourceFieldRef != nil {
		n++
		c.In("resourceFieldRef")
		checkResourceRef(c.List, from.ResourceFieldRef, false)
		c.Out()
	}
	if r := from.ConfigMapKeyRef; r != nil {
		n++
		checkKeyRef(c.List, "configMapKeyRef", r.Name, r.Key)
	}
	if r := from.SecretKeyRef; r != nil {
		n++
		checkKeyRef(c.List, "secretKeyRef", r.Name, r.Key)
	}
	if r := from.FileKeyRef; r != nil {
		n++
		c.In("fileKeyRef")
		c.fileRef(r)
		c.Out()
	}
	switch {
	case n == 0:
		c.Invalid("", "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or "+
			"`fileKeyRef`")
	case envVar.Value != "":
		c.Invalid("", "", "may not be specified when `value` is not empty")
	case n > 1:
		c.Invalid("", "", "may not have more than one field specified at a time")
	}
}

func checkKeyRef(errs *check.List, child, name, key string) {
	errs.In(child)
	errs.Name("name", name, apivalidation.NameIsDNSSubdomain)
	check.NeedsForm(errs, "key", key, errs.ConfigKey)
	errs.Out()
}

// fileRef selects a key of an env file in an emptyDir of the pod (KEP-3721).
func (c *containers) fileRef(selector *corev1.FileKeySelector) {
	switch selector.VolumeName {
	case "":
		c.Required("volumeName", "")
	default:
		if v := c.volumes.find(selector.VolumeName); v == nil {
			c.NotFound("volumeName", selector.VolumeName)
		} else if v.EmptyDir == nil {
			c.Invalid("volumeName", selector.VolumeName, "referenced volume must be of type emptyDir")
		}
	}
	if selector.Path == "" {
		c.Required("path", "")
	} else {
		checkLocalPath(c.List, "path", selector.Path)
	}
	if selector.Key == "" {
		c.Required("key", "")
		return
	}
	for _, m := range validation.IsRelaxedEnvVarName(selector.Key) {
		c.Invalid("key", selector.Key, m)
	}
	if len(selector.Key) > 128 {
		c.TooLong("key", 128)
	}
}

func checkEnvFrom(errs *check.List, ctr *corev1.Container) {
	errs.In("envFrom")
	for i := range ctr.EnvFrom {
		from := &ctr.EnvFrom[i]
		n := 0
		errs.Index(i)
		if from.Prefix != "" {
			errs.EnvName("prefix", from.Prefix)
		}
		if r := from.ConfigMapRef; r != nil {
			n++
			checkEnvFromName(errs, "configMapRef", r.Name)
		}
		if r := from.SecretRef; r != nil {
			n++
			checkEnvFromName(errs, "secretRef", r.Name)
		}
		errs.Out()
		switch { // reported at the list, as Kubernetes does
		case n == 0:
			errs.Invalid("", "", "must specify one of: `configMapRef` or `secretRef`")
		case n > 1:
			errs.Invalid("", "", "may not have more than one field specified at a time")
		}
	}
	errs.Out()
}

func checkEnvFromName(errs *check.List, child, name string) {
	errs.In(child)
	if name == "" {
		errs.Required("name", "")
	} else {
		errs.Prefix("name", name, apivalidation.NameIsDNSSubdomain)
	}
	errs.Out()
}

// The fields of a pod that its containers may see, sorted as they are printed.
var (
	envFields = []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
	fileFields = []string{
		"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
	}
	resourceFields = []string{
		"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage",
		"requests.memory",
	}
	// knownFields are the paths that mean something in v1 at all.
	knownFields = []string{
		"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid",
		"spec.nodeName",
		"spec.restartPolicy", "spec.serviceAccountName", "spec.schedulerName", "status.phase",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
)

func checkFieldRef(errs *check.List, selector *corev1.ObjectFieldSelector, valid []string) {
	switch {
	case selector.APIVersion == "":
		errs.Required("apiVersion", "")
		return
	case selector.FieldPath == "":
		errs.Required("fieldPath", "")
		return
	case selector.APIVersion != "v1":
		errs.Invalid("fieldPath", selector.FieldPath,
			fmt.Sprintf("error converting fieldPath: unsupported pod version: %s",
				selector.APIVersion))
		return
	}
	path, key, subscripted := splitSubscript(selector.FieldPath)
	switch path {
	case "spec.host":
		path = "spec.nodeName" // a name from before v1
	case "metadata.annotations", "metadata.labels":
	default:
		if subscripted || !slices.Contains(knownFields, path) {
			errs.Invalid("fieldPath", selector.FieldPath, "error converting fieldPath: field label not supported: "+
				selector.FieldPath)
			return
		}
	}
	switch {
	case subscripted && path == "metadata.annotations":
		errs.Qualified("", strings.ToLower(key))
	case subscripted:
		errs.Qualified("", key)
	case !slices.Contains(valid, path):
		check.NotSupported(errs, "fieldPath", path, valid...)
	}
}

// splitSubscript takes a path like metadata.labels['key'] apart.
func splitSubscript(path string) (field, key string, ok bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	field, key, ok = strings.Cut(rest, "['")
	if !ok || field == "" {
		return path, "", false
	}
	return field, key, true
}

func checkResourceRef(errs *check.List, selector *corev1.ResourceFieldSelector, inVolume bool) {
	huge := strings.HasPrefix(selector.Resource, "limits.hugepages-") ||
		strings.HasPrefix(selector.Resource, "requests.hugepages-")
	switch {
	case inVolume && selector.ContainerName == "":
		errs.Required("containerName", "")
	case selector.Resource == "":
		errs.Required("resource", "")
	case !huge && !slices.Contains(resourceFields, selector.Resource):
		check.NotSupported(errs, "resource", selector.Resource, resourceFields...)
	}
	if selector.Divisor.IsZero() {
		return
	}
	divisor := selector.Divisor.String()
	name := ""
	switch selector.Resource {
	case "limits.cpu", "requests.cpu":
		if divisor != "1m" && divisor != "1" {
			errs.Invalid("divisor", selector.Resource,
				"only divisor's values 1m and 1 are supported with the cpu resource")
		}
		return
	case "limits.memory", "requests.memory":
		name = "memory"
	case "limits.ephemeral-storage", "requests.ephemeral-storage":
		name = "local ephemeral storage"
	}
	if huge {
		name = "hugepages"
	}
	if name != "" && !slices.Contains(byteDivisors, divisor) {
		errs.Invalid("divisor", selector.Resource, "only divisor's values "+strings.Join(byteDivisors, ", ")+
			" are supported with the "+name+" resource")
	}
}

var byteDivisors = []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
