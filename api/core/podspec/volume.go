// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

	"keelson/api/internal/check"
)

// volumes are those of one pod or template. The containers refer to them, so they are checked first.
type volumes struct {
	*check.List
	list []corev1.Volume
	pod  string // the pod's name; "": there is none yet
	// bad are the indexes of volumes with errors, to which mounts cannot refer.
	bad map[int]bool
	// ownClaims are the names of the claims of ephemeral volumes, once they were asked for.
	ownClaims *check.Set
}

func (v *volumes) check() {
	if len(v.list) == 0 {
		return
	}
	var names check.Set
	v.In("volumes")
	for i := range v.list {
		volume := &v.list[i]
		before := v.Len()
		v.Index(i)
		checkSource(v.List, v.pod, volume)
		check.NeedsForm(v.List, "name", volume.Name, v.Label)
		if names.Has(volume.Name) {
			v.Duplicate("name", volume.Name)
		}
		if v.Len() == before {
			names.Add(volume.Name)
		} else {
			v.markBad(i)
		}
		if volume.PersistentVolumeClaim != nil && v.createsClaim(volume.PersistentVolumeClaim.ClaimName) {
			v.Invalid("persistentVolumeClaim.claimName", volume.PersistentVolumeClaim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
		v.Out()
	}
	v.Out()
}

func (v *volumes) markBad(i int) {
	if v.bad == nil {
		v.bad = map[int]bool{}
	}
	v.bad[i] = true
}

// createsClaim reports whether an ephemeral volume of this pod has the claim called name.
func (v *volumes) createsClaim(name string) bool {
	if v.pod == "" {
		return false
	}
	if v.ownClaims == nil {
		v.ownClaims = &check.Set{}
		for i := range v.list {
			if volume := &v.list[i]; volume.Ephemeral != nil {
				v.ownClaims.Add(v.pod + "-" + volume.Name)
			}
		}
	}
	return v.ownClaims.Has(name)
}

// find returns a well-formed volume of the pod by name, or nil.
func (v *volumes) find(name string) *corev1.Volume {
	for i := range v.list {
		if volume := &v.list[i]; volume.Name == name && name != "" && !v.bad[i] {
			return volume
		}
	}
	return nil
}

// checkSource wants exactly one source.
func checkSource(errs *check.List, pod string, volume *corev1.Volume) {
	EachSource(errs, podSources, &volume.VolumeSource, func(s *Source, value any, first bool) {
		if !first {
			s.OneTooMany(errs)
			return
		}
		s.Check(errs, value)
		// What these two must fit together with is the name of the volume, outside the source.
		switch source := value.(type) {
		case *corev1.ISCSIVolumeSource:
			if longPortal(volume.Name, source) {
				errs.Invalid("name", volume.Name, portalTooLong)
			}
		case *corev1.EphemeralVolumeSource:
			checkEphemeralName(errs, pod, volume.Name)
		}
	})
}

func checkEmptyDir(errs *check.List, s *corev1.EmptyDirVolumeSource) {
	if q := s.SizeLimit; q != nil && q.Sign() < 0 {
		errs.Forbidden("sizeLimit", "SizeLimit field must be a valid resource quantity")
	}
}

func checkSecret(errs *check.List, s *corev1.SecretVolumeSource) {
	check.Needs(errs, "secretName", s.SecretName)
	checkMode(errs, "defaultMode", s.DefaultMode)
	checkKeyPaths(errs, s.Items)
}

func checkConfigMap(errs *check.List, s *corev1.ConfigMapVolumeSource) {
	check.Needs(errs, "name", s.Name)
	checkMode(errs, "defaultMode", s.DefaultMode)
	checkKeyPaths(errs, s.Items)
}

func checkDownwardAPI(errs *check.List, s *corev1.DownwardAPIVolumeSource) {
	checkMode(errs, "defaultMode", s.DefaultMode)
	for i := range s.Items {
		checkDownwardFile(errs, &s.Items[i])
	}
}

func checkImage(errs *check.List, s *corev1.ImageVolumeSource) {
	check.Needs(errs, "reference", s.Reference)
	checkPullPolicy(errs, "pullPolicy", s.PullPolicy)
}

func checkHostPath(errs *check.List, s *corev1.HostPathVolumeSource) {
	if s.Path == "" {
		errs.Required("path", "")
		return
	}
	NoBacksteps(errs, "path", s.Path)
	check.Pointer(errs, "type", s.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev,
		corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
}

func checkKeyPaths(errs *check.List, items []corev1.KeyToPath) {
	errs.In("items")
	for i := range items {
		errs.Index(i)
		check.Needs(errs, "key", items[i].Key)
		check.Needs(errs, "path", items[i].Path)
		checkLocalPath(errs, "path", items[i].Path)
		checkMode(errs, "mode", items[i].Mode)
		errs.Out()
	}
	errs.Out()
}

// checkDownwardFile reports at its list, without an index, as Kubernetes does.
func checkDownwardFile(errs *check.List, file *corev1.DownwardAPIVolumeFile) {
	check.Needs(errs, "path", file.Path)
	checkLocalPath(errs, "path", file.Path)
	switch {
	case file.FieldRef != nil:
		errs.In("fieldRef")
		checkFieldRef(errs, file.FieldRef, fileFields)
		errs.Out()
		if file.ResourceFieldRef != nil {
			errs.Invalid("", "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case file.ResourceFieldRef != nil:
		errs.In("resourceFieldRef")
		checkResourceRef(errs, file.ResourceFieldRef, true)
		errs.Out()
	default:
		errs.Required("", "one of fieldRef and resourceFieldRef is required")
	}
	checkMode(errs, "mode", file.Mode)
}

func checkProjected(errs *check.List, v *corev1.ProjectedVolumeSource) {
	checkMode(errs, "defaultMode", v.DefaultMode)
	var paths check.Set
	for i := range v.Sources {
		p := projection{errs: errs, index: i, paths: &paths}
		p.files(&v.Sources[i])
		p.credentials(&v.Sources[i])
		if p.given > 1 {
			errs.In("sources")
			errs.Index(i)
			errs.Forbidden("", "may not specify more than 1 volume type per source")
			errs.Out()
			errs.Out()
		}
	}
}

// projection is one source of a projected volume.
type projection struct {
	errs  *check.List
	index int
	given int        // how many types of source it has
	paths *check.Set // of all sources before it too
}

// in steps into a type of source that is given.
func (p *projection) in(child string) {
	p.given++
	p.errs.In("sources")
	p.errs.Index(p.index)
	p.errs.In(child)
}

func (p *projection) out() {
	p.errs.Out()
	p.errs.Out()
	p.errs.Out()
}

// once reports a path, at the projected volume, that an earlier source has; culprit is the value to print.
func (p *projection) once(path, culprit string) {
	if path != "" && !p.paths.Add(path) {
		p.errs.Invalid("", culprit, "conflicting duplicate paths")
	}
}

// files checks the sources that are objects of the API.
func (p *projection) files(s *corev1.VolumeProjection) {
	if s.Secret != nil {
		p.in("secret")
		check.Needs(p.errs, "name", s.Secret.Name)
		checkKeyPaths(p.errs, s.Secret.Items)
		p.out()
		for _, item := range s.Secret.Items {
			p.once(item.Path, s.Secret.Name)
		}
	}
	if s.ConfigMap != nil {
		p.in("configMap")
		check.Needs(p.errs, "name", s.ConfigMap.Name)
		checkKeyPaths(p.errs, s.ConfigMap.Items)
		p.out()
		for _, item := range s.ConfigMap.Items {
			p.once(item.Path, s.ConfigMap.Name)
		}
	}
	if s.DownwardAPI != nil {
		p.in("downwardAPI")
		for j := range s.DownwardAPI.Items {
			checkDownwardFile(p.errs, &s.DownwardAPI.Items[j])
		}
		p.out()
		for _, item := range s.DownwardAPI.Items {
			p.once(item.Path, item.Path)
		}
	}
}

// credentials checks the sources that the kubelet asks for.
func (p *projection) credentials(s *corev1.VolumeProjection) {
	if t := s.ServiceAccountToken; t != nil {
		p.in("serviceAccountToken")
		checkTokenSeconds(p.errs, t)
		p.out()
		check.Needs(p.errs, "path", t.Path)
		checkLocalPath(p.errs, "path", t.Path)
	}
	if b := s.ClusterTrustBundle; b != nil {
		p.in("clusterTrustBundle")
		checkTrustBundle(p.errs, b)
		p.out()
		if !p.paths.Add(b.Path) {
			p.errs.Invalid("", b.Path, "conflicting duplicate paths")
		}
	}
	if pc := s.PodCertificate; pc != nil {
		p.in("podCertificate")
		checkPodCertificate(p.errs, pc)
		p.out()
		for _, path := range []string{pc.CredentialBundlePath, pc.KeyPath, pc.CertificateChainPath} {
			p.once(path, path)
		}
	}
}

func checkTokenSeconds(errs *check.List, t *corev1.ServiceAccountTokenProjection) {
	seconds := int64(0)
	if t.ExpirationSeconds != nil {
		seconds = *t.ExpirationSeconds
	}
	if seconds < 10*60 {
		errs.Invalid("expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
	}
	if seconds > 1<<32 {
		errs.Invalid("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
	}
}

func checkTrustBundle(errs *check.List, projection *corev1.ClusterTrustBundleProjection) {
	switch {
	case projection.Name != nil && projection.SignerName != nil:
		errs.Invalid("", *projection, "only one of name and signerName may be used")
	case projection.Name != nil:
		if *projection.Name == "" {
			errs.Required("name", "must be a valid object name")
		}
		for _, m := range trustBundleName(*projection.Name) {
			errs.Invalid("name", *projection.Name, "not a valid clustertrustbundlename: "+m)
		}
		if projection.LabelSelector != nil {
			errs.Invalid("labelSelector", projection.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case projection.SignerName != nil:
		if *projection.SignerName == "" {
			errs.Required("signerName", "must be a valid signer name")
		}
		errs.SignerName("signerName", *projection.SignerName)
		errs.Selector("labelSelector", projection.LabelSelector)
	default:
		errs.Required("", "either name or signerName must be specified")
	}
	check.Needs(errs, "path", projection.Path)
	checkLocalPath(errs, "path", projection.Path)
}

// trustBundleName wants "<signer with / as :>:<name>", or a name without colon where the bundle has no signer.
func trustBundleName(name string) []string {
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		return apivalidation.NameIsDNSSubdomain(name[i+1:], false)
	}
	return apivalidation.NameIsDNSSubdomain(name, false)
}

// DriverName wants the name of a CSI driver.
func DriverName(l *check.List, child, name string) {
	if name == "" {
		l.Required(child, "")
		return
	}
	if len(name) > maxDriver {
		l.TooLong(child, maxDriver)
	}
	for _, m := range apivalidation.NameIsDNSSubdomain(strings.ToLower(name), false) {
		l.Invalid(child, name, m)
	}
}

const maxDriver = 63

func checkCSI(errs *check.List, s *corev1.CSIVolumeSource) {
	DriverName(errs, "driver", s.Driver)
	if r := s.NodePublishSecretRef; r != nil {
		if r.Name == "" {
			errs.Required("nodePublishSecretRef.name", "")
		} else {
			errs.Name("name", r.Name, apivalidation.NameIsDNSSubdomain)
		}
	}
}

// checkEphemeralName checks the name of the claim that the volume called name gets.
func checkEphemeralName(errs *check.List, pod string, name string) {
	if pod == "" || name == "" {
		return
	}
	claim := pod + "-" + name
	for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
		errs.Invalid("name", name, fmt.Sprintf("PVC name %q: %v", claim, m))
	}
}

func checkEphemeralVolume(errs *check.List, s *corev1.EphemeralVolumeSource) {
	template := s.VolumeClaimTemplate
	if template == nil {
		errs.Required("volumeClaimTemplate", "")
		return
	}
	errs.In("volumeClaimTemplate")
	errs.In("metadata")
	errs.Add(apivalidation.ValidateAnnotations(template.Annotations, errs.Path("annotations"))...)
	errs.Labels("labels", template.Labels)
	m := reflect.ValueOf(template.ObjectMeta)
	for i := range m.NumField() {
		if f := m.Type().Field(i); f.Name != "Annotations" && f.Name != "Labels" && !m.Field(i).IsZero() {
			errs.Forbidden(strings.ToLower(f.Name[:1])+f.Name[1:], "cannot be set")
		}
	}
	errs.Out()
	errs.In("spec")
	ClaimSpec(errs, &template.Spec)
	errs.Out()
	errs.Out()
}

// ClaimSpec checks what a persistent volume claim needs to be created at all.
func ClaimSpec(errs *check.List, spec *corev1.PersistentVolumeClaimSpec) {
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
	}
	if len(spec.AccessModes) == 0 {
		errs.Required("accessModes", "at least 1 access mode is required")
	}
	errs.Selector("selector", spec.Selector)
	for _, m := range spec.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(errs, "accessModes", m, modes...)
		}
	}
	if len(spec.AccessModes) > 1 && slices.Contains(spec.AccessModes, corev1.ReadWriteOncePod) {
		errs.Forbidden("accessModes", "may not use ReadWriteOncePod with other access modes")
	}
	if size, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok {
		errs.In("resources")
		errs.Key(string(corev1.ResourceStorage))
		errs.Required("", "")
		errs.Out()
		errs.Out()
	} else if size.Sign() <= 0 {
		errs.In("resources")
		errs.Key(string(corev1.ResourceStorage))
		errs.Invalid("", size.String(), "must be greater than zero")
		errs.Out()
		errs.Out()
	}
	if spec.StorageClassName != nil && *spec.StorageClassName != "" {
		errs.Name("storageClassName", *spec.StorageClassName, apivalidation.NameIsDNSSubdomain)
	}
	check.Pointer(errs, "volumeMode", spec.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	claimSources(errs, spec)
	if class := spec.VolumeAttributesClassName; class != nil && *class != "" {
		errs.Subdomain("volumeAttributesClassName", *class)
	}
}

// claimSources checks where a claim's volume takes its first contents from.
func claimSources(errs *check.List, spec *corev1.PersistentVolumeClaimSpec) {
	value := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	reference := func(group, kindName, name string) {
		check.Needs(errs, "name", name)
		check.Needs(errs, "kind", kindName)
		if group == "" && kindName != "PersistentVolumeClaim" {
			errs.Invalid("", kindName, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
		}
		if group != "" {
			errs.Subdomain("apiGroup", group)
		}
	}
	d := spec.DataSource
	ref := spec.DataSourceRef
	if d != nil {
		errs.Within("dataSource", func() { reference(value(d.APIGroup), d.Kind, d.Name) })
	}
	if ref == nil {
		return
	}
	errs.In("dataSourceRef")
	reference(value(ref.APIGroup), ref.Kind, ref.Name)
	foreign := value(ref.Namespace)
	if foreign != "" {
		errs.Name("namespace", foreign, apivalidation.ValidateNamespaceName)
	}
	errs.Out()
	none := struct{}{} // Kubernetes prints so what it means to be a path
	switch {
	case d == nil:
	case foreign != "":
		errs.Invalid("", none, "may not be specified when dataSourceRef.namespace is specified")
	case d.Kind != ref.Kind || d.Name != ref.Name || value(d.APIGroup) != value(ref.APIGroup):
		errs.Invalid("", none, "must match dataSourceRef")
	}
}
