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

func (c *Checker) volumes() {
	if len(c.spec.Volumes) == 0 {
		return
	}
	var names check.Set
	c.In("volumes")
	for i := range c.spec.Volumes {
		v := &c.spec.Volumes[i]
		before := c.Len()
		c.Index(i)
		c.volumeSource(v)
		if v.Name == "" {
			c.Required("name", "")
		} else {
			c.Label("name", v.Name)
		}
		if names.Has(v.Name) {
			c.Duplicate("name", v.Name)
		}
		if c.Len() == before {
			names.Add(v.Name)
		} else {
			c.markBad(i)
		}
		if v.PersistentVolumeClaim != nil && c.createsClaim(v.PersistentVolumeClaim.ClaimName) {
			c.Invalid("persistentVolumeClaim.claimName", v.PersistentVolumeClaim.ClaimName,
				"must not reference a PVC that gets created for an ephemeral volume")
		}
		c.Out()
	}
	c.Out()
}

func (c *Checker) markBad(i int) {
	if c.badVolumes == nil {
		c.badVolumes = map[int]bool{}
	}
	c.badVolumes[i] = true
}

// createsClaim tells whether an ephemeral volume of this pod has the claim called name.
func (c *Checker) createsClaim(name string) bool {
	if c.meta == nil || c.meta.Name == "" {
		return false
	}
	return slices.ContainsFunc(c.spec.Volumes, func(v corev1.Volume) bool {
		return v.Ephemeral != nil && c.meta.Name+"-"+v.Name == name
	})
}

// sourceOrder are the volume sources in the order in which Kubernetes looks at them.
var sourceOrder = []string{
	"EmptyDir", "HostPath", "GitRepo", "GCEPersistentDisk", "AWSElasticBlockStore", "Secret", "NFS", "ISCSI",
	"Glusterfs", "Flocker",
	"PersistentVolumeClaim", "RBD", "Cinder", "CephFS", "Quobyte", "DownwardAPI", "FC", "FlexVolume", "ConfigMap",
	"AzureFile", "VsphereVolume",
	"PhotonPersistentDisk", "PortworxVolume", "AzureDisk", "StorageOS", "Projected", "ScaleIO", "CSI", "Ephemeral",
	"Image",
}

// twice are where Kubernetes reports a second source, if not where its fields are.
var twice = map[string]string{
	"GCEPersistentDisk":    "gcePersistentDisk",
	"AWSElasticBlockStore": "awsElasticBlockStore",
	"NFS":                  "nfs",
	"ISCSI":                "iscsi",
	"RBD":                  "rbd",
	"FC":                   "fc",
	"DownwardAPI":          "downwarAPI",
	"StorageOS":            "storageos",
	"CSI":                  "csi",
}

// TwiceName is where Kubernetes reports that the source is one too many.
func TwiceName(source string) string {
	if name, ok := twice[source]; ok {
		return name
	}
	return strings.ToLower(source[:1]) + source[1:]
}

// volumeSource wants exactly one source.
func (c *Checker) volumeSource(v *corev1.Volume) {
	var one corev1.Volume
	all := reflect.ValueOf(&v.VolumeSource).Elem()
	n := 0
	for _, source := range all.Fields() {
		if !source.IsNil() {
			n++
		}
	}
	switch n {
	case 0:
		c.Required("", "must specify a volume type")
		return
	case 1:
		c.onlySource(v)
		return
	}
	n = 0
	for _, source := range sourceOrder {
		f := all.FieldByName(source)
		if f.IsNil() {
			continue
		}
		if n++; n > 1 {
			c.Forbidden(TwiceName(source), "may not specify more than 1 volume type")
			continue
		}
		one.Name = v.Name
		reflect.ValueOf(&one.VolumeSource).Elem().FieldByName(source).Set(f)
		c.onlySource(&one)
	}
}

// onlySource checks the one source of v.
func (c *Checker) onlySource(v *corev1.Volume) {
	s := &v.VolumeSource
	// in steps into child when its source is set.
	in := func(set bool, child string) bool {
		if set {
			c.In(child)
		}
		return set
	}
	if in(s.EmptyDir != nil, "emptyDir") {
		if q := s.EmptyDir.SizeLimit; q != nil && q.Sign() < 0 {
			c.Forbidden("sizeLimit", "SizeLimit field must be a valid resource quantity")
		}
		c.Out()
	}
	if in(s.HostPath != nil, "hostPath") {
		c.hostPath(s.HostPath)
		c.Out()
	}
	if in(s.Secret != nil, "secret") {
		c.requiredName("secretName", s.Secret.SecretName)
		c.mode("defaultMode", s.Secret.DefaultMode)
		c.keyPaths(s.Secret.Items)
		c.Out()
	}
	c.legacyVolume(v, in)
	c.apiVolume(v, in)
	if in(s.CSI != nil, "csi") {
		c.csi(s.CSI)
		c.Out()
	}
	if in(s.Ephemeral != nil, "ephemeral") {
		c.ephemeralVolume(s.Ephemeral)
		c.Out()
		c.ephemeralName(v.Name)
	}
	if in(s.Image != nil, "image") {
		if c.meta != nil && s.Image.Reference == "" {
			c.Required("reference", "")
		}
		c.pullPolicy("pullPolicy", s.Image.PullPolicy)
		c.Out()
	}
}

// apiVolume checks the sources whose files come from the API, and claims.
func (c *Checker) apiVolume(v *corev1.Volume, in func(set bool, child string) bool) {
	s := &v.VolumeSource
	if in(s.PersistentVolumeClaim != nil, "persistentVolumeClaim") {
		c.requiredName("claimName", s.PersistentVolumeClaim.ClaimName)
		c.Out()
	}
	if in(s.DownwardAPI != nil, "downwardAPI") {
		c.mode("defaultMode", s.DownwardAPI.DefaultMode)
		for i := range s.DownwardAPI.Items {
			c.downwardFile(&s.DownwardAPI.Items[i])
		}
		c.Out()
	}
	if in(s.ConfigMap != nil, "configMap") {
		c.requiredName("name", s.ConfigMap.Name)
		c.mode("defaultMode", s.ConfigMap.DefaultMode)
		c.keyPaths(s.ConfigMap.Items)
		c.Out()
	}
	if in(s.Projected != nil, "projected") {
		c.mode("defaultMode", s.Projected.DefaultMode)
		c.projected(s.Projected)
		c.Out()
	}
}

func (c *Checker) requiredName(child, name string) {
	if name == "" {
		c.Required(child, "")
	}
}

func (c *Checker) hostPath(s *corev1.HostPathVolumeSource) {
	if s.Path == "" {
		c.Required("path", "")
		return
	}
	c.noBacksteps("path", s.Path)
	check.Pointer(c.List, "type", s.Type, corev1.HostPathUnset, corev1.HostPathBlockDev, corev1.HostPathCharDev,
		corev1.HostPathDirectory,
		corev1.HostPathDirectoryOrCreate, corev1.HostPathFile, corev1.HostPathFileOrCreate, corev1.HostPathSocket)
}

func (c *Checker) keyPaths(items []corev1.KeyToPath) {
	c.In("items")
	for i := range items {
		c.Index(i)
		c.requiredName("key", items[i].Key)
		c.requiredName("path", items[i].Path)
		c.localPath("path", items[i].Path)
		c.mode("mode", items[i].Mode)
		c.Out()
	}
	c.Out()
}

// downwardFile reports at its list, without an index, as Kubernetes does.
func (c *Checker) downwardFile(f *corev1.DownwardAPIVolumeFile) {
	c.requiredName("path", f.Path)
	c.localPath("path", f.Path)
	switch {
	case f.FieldRef != nil:
		c.In("fieldRef")
		c.fieldRef(f.FieldRef, fileFields)
		c.Out()
		if f.ResourceFieldRef != nil {
			c.Invalid("", "resource", "fieldRef and resourceFieldRef can not be specified simultaneously")
		}
	case f.ResourceFieldRef != nil:
		c.In("resourceFieldRef")
		c.resourceRef(f.ResourceFieldRef, true)
		c.Out()
	default:
		c.Required("", "one of fieldRef and resourceFieldRef is required")
	}
	c.mode("mode", f.Mode)
}

func (c *Checker) projected(v *corev1.ProjectedVolumeSource) {
	var paths check.Set
	for i := range v.Sources {
		p := projection{c: c, index: i, paths: &paths}
		p.files(&v.Sources[i])
		p.credentials(&v.Sources[i])
		if p.given > 1 {
			c.In("sources")
			c.Index(i)
			c.Forbidden("", "may not specify more than 1 volume type per source")
			c.Out()
			c.Out()
		}
	}
}

// projection is one source of a projected volume.
type projection struct {
	c     *Checker
	index int
	given int        // how many types of source it has
	paths *check.Set // of all sources before it too
}

// in steps into a type of source that is given.
func (p *projection) in(child string) {
	p.given++
	p.c.In("sources")
	p.c.Index(p.index)
	p.c.In(child)
}

func (p *projection) out() {
	p.c.Out()
	p.c.Out()
	p.c.Out()
}

// once reports a path, at the projected volume, that an earlier source has; culprit is the value to print.
func (p *projection) once(path, culprit string) {
	if path != "" && !p.paths.Add(path) {
		p.c.Invalid("", culprit, "conflicting duplicate paths")
	}
}

// files checks the sources that are objects of the API.
func (p *projection) files(s *corev1.VolumeProjection) {
	if s.Secret != nil {
		p.in("secret")
		p.c.requiredName("name", s.Secret.Name)
		p.c.keyPaths(s.Secret.Items)
		p.out()
		for _, item := range s.Secret.Items {
			p.once(item.Path, s.Secret.Name)
		}
	}
	if s.ConfigMap != nil {
		p.in("configMap")
		p.c.requiredName("name", s.ConfigMap.Name)
		p.c.keyPaths(s.ConfigMap.Items)
		p.out()
		for _, item := range s.ConfigMap.Items {
			p.once(item.Path, s.ConfigMap.Name)
		}
	}
	if s.DownwardAPI != nil {
		p.in("downwardAPI")
		for j := range s.DownwardAPI.Items {
			p.c.downwardFile(&s.DownwardAPI.Items[j])
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
		p.c.tokenSeconds(t)
		p.out()
		p.c.requiredName("path", t.Path)
		p.c.localPath("path", t.Path)
	}
	if b := s.ClusterTrustBundle; b != nil {
		p.in("clusterTrustBundle")
		p.c.trustBundle(b)
		p.out()
		if !p.paths.Add(b.Path) {
			p.c.Invalid("", b.Path, "conflicting duplicate paths")
		}
	}
	if pc := s.PodCertificate; pc != nil {
		p.in("podCertificate")
		p.c.podCertificate(pc)
		p.out()
		for _, path := range []string{pc.CredentialBundlePath, pc.KeyPath, pc.CertificateChainPath} {
			p.once(path, path)
		}
	}
}

func (c *Checker) tokenSeconds(t *corev1.ServiceAccountTokenProjection) {
	seconds := int64(0)
	if t.ExpirationSeconds != nil {
		seconds = *t.ExpirationSeconds
	}
	if seconds < 10*60 {
		c.Invalid("expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
	}
	if seconds > 1<<32 {
		c.Invalid("expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
	}
}

func (c *Checker) trustBundle(b *corev1.ClusterTrustBundleProjection) {
	switch {
	case b.Name != nil && b.SignerName != nil:
		c.Invalid("", *b, "only one of name and signerName may be used")
	case b.Name != nil:
		if *b.Name == "" {
			c.Required("name", "must be a valid object name")
		}
		for _, m := range trustBundleName(*b.Name) {
			c.Invalid("name", *b.Name, "not a valid clustertrustbundlename: "+m)
		}
		if b.LabelSelector != nil {
			c.Invalid("labelSelector", b.LabelSelector, "labelSelector must be unset if name is specified")
		}
	case b.SignerName != nil:
		if *b.SignerName == "" {
			c.Required("signerName", "must be a valid signer name")
		}
		c.SignerName("signerName", *b.SignerName)
		c.Selector("labelSelector", b.LabelSelector)
	default:
		c.Required("", "either name or signerName must be specified")
	}
	c.requiredName("path", b.Path)
	c.localPath("path", b.Path)
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

func (c *Checker) csi(s *corev1.CSIVolumeSource) {
	DriverName(c.List, "driver", s.Driver)
	if r := s.NodePublishSecretRef; r != nil {
		if r.Name == "" {
			c.Required("nodePublishSecretRef.name", "")
		} else {
			c.Name("name", r.Name, apivalidation.NameIsDNSSubdomain)
		}
	}
}

// ephemeralName checks the name of the claim that the volume called name gets.
func (c *Checker) ephemeralName(name string) {
	if c.meta == nil || c.meta.Name == "" || name == "" {
		return
	}
	claim := c.meta.Name + "-" + name
	for _, m := range apivalidation.NameIsDNSSubdomain(claim, false) {
		c.Invalid("name", name, fmt.Sprintf("PVC name %q: %v", claim, m))
	}
}

func (c *Checker) ephemeralVolume(s *corev1.EphemeralVolumeSource) {
	t := s.VolumeClaimTemplate
	if t == nil {
		c.Required("volumeClaimTemplate", "")
		return
	}
	c.In("volumeClaimTemplate")
	c.In("metadata")
	c.Add(apivalidation.ValidateAnnotations(t.Annotations, c.Path("annotations"))...)
	c.Labels("labels", t.Labels)
	m := reflect.ValueOf(t.ObjectMeta)
	for i := range m.NumField() {
		if f := m.Type().Field(i); f.Name != "Annotations" && f.Name != "Labels" && !m.Field(i).IsZero() {
			c.Forbidden(strings.ToLower(f.Name[:1])+f.Name[1:], "cannot be set")
		}
	}
	c.Out()
	c.In("spec")
	ClaimSpec(c.List, &t.Spec)
	c.Out()
	c.Out()
}

// VolumeSource checks that v has one source and that it is right, where v is not a pod's.
func VolumeSource(l *check.List, v *corev1.Volume) { (&Checker{List: l}).volumeSource(v) }

// NoBacksteps wants a path without "..".
func NoBacksteps(l *check.List, child, p string) { (&Checker{List: l}).noBacksteps(child, p) }

// ClaimSpec checks what a persistent volume claim needs to be created at all.
func ClaimSpec(l *check.List, s *corev1.PersistentVolumeClaimSpec) {
	modes := []corev1.PersistentVolumeAccessMode{
		corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod,
	}
	if len(s.AccessModes) == 0 {
		l.Required("accessModes", "at least 1 access mode is required")
	}
	l.Selector("selector", s.Selector)
	for _, m := range s.AccessModes {
		if !slices.Contains(modes, m) {
			check.NotSupported(l, "accessModes", m, modes...)
		}
	}
	if len(s.AccessModes) > 1 && slices.Contains(s.AccessModes, corev1.ReadWriteOncePod) {
		l.Forbidden("accessModes", "may not use ReadWriteOncePod with other access modes")
	}
	if size, ok := s.Resources.Requests[corev1.ResourceStorage]; !ok {
		l.In("resources")
		l.Key(string(corev1.ResourceStorage))
		l.Required("", "")
		l.Out()
		l.Out()
	} else if size.Sign() <= 0 {
		l.In("resources")
		l.Key(string(corev1.ResourceStorage))
		l.Invalid("", size.String(), "must be greater than zero")
		l.Out()
		l.Out()
	}
	if s.StorageClassName != nil && *s.StorageClassName != "" {
		l.Name("storageClassName", *s.StorageClassName, apivalidation.NameIsDNSSubdomain)
	}
	check.Pointer(l, "volumeMode", s.VolumeMode, corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem)
	claimSources(l, s)
	if class := s.VolumeAttributesClassName; class != nil && *class != "" {
		l.Subdomain("volumeAttributesClassName", *class)
	}
}

// claimSources checks where a claim's volume takes its first contents from.
func claimSources(l *check.List, s *corev1.PersistentVolumeClaimSpec) {
	value := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	reference := func(group, kindName, name string) {
		if name == "" {
			l.Required("name", "")
		}
		if kindName == "" {
			l.Required("kind", "")
		}
		if group == "" && kindName != "PersistentVolumeClaim" {
			l.Invalid("", kindName, "must be 'PersistentVolumeClaim' when referencing the default apiGroup")
		}
		if group != "" {
			l.Subdomain("apiGroup", group)
		}
	}
	d := s.DataSource
	ref := s.DataSourceRef
	if d != nil {
		l.Within("dataSource", func() { reference(value(d.APIGroup), d.Kind, d.Name) })
	}
	if ref == nil {
		return
	}
	l.In("dataSourceRef")
	reference(value(ref.APIGroup), ref.Kind, ref.Name)
	foreign := value(ref.Namespace)
	if foreign != "" {
		l.Name("namespace", foreign, apivalidation.ValidateNamespaceName)
	}
	l.Out()
	none := struct{}{} // Kubernetes prints so what it means to be a path
	switch {
	case d == nil:
	case foreign != "":
		l.Invalid("", none, "may not be specified when dataSourceRef.namespace is specified")
	case d.Kind != ref.Kind || d.Name != ref.Name || value(d.APIGroup) != value(ref.APIGroup):
		l.Invalid("", none, "must match dataSourceRef")
	}
}
