// SPDX-License-Identifier: Apache-2.0

package keelson_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mayImport is the plan of the house: which room may import which of ours. A room not listed may not exist.
// Changing this table is an architecture decision (docs/decisions).
var mayImport = map[string][]string{
	"lib":         {},
	"event":       {},
	"api":         {"lib"},
	"store":       {"lib"},
	"pki":         {"lib"},
	"cri":         {},
	"runtime":     {"lib", "event", "cri"},
	"network":     {"lib"},
	"auth":        {"lib", "event", "api", "pki"},
	"apiserver":   {"lib", "event", "api", "pki", "store", "auth"},
	"client":      {"lib", "api"},
	"scheduler":   {"lib", "event", "api", "client"},
	"controllers": {"lib", "event", "api", "client", "pki"},
	"kubelet":     {"lib", "event", "api", "client", "cri", "pki"},
	"proxy":       {"lib", "event", "api", "client", "network"},
	"podroutes":   {"lib", "api", "client", "network"},
	"dns":         {"lib", "event", "client"},
	"timeline":    {"lib", "event", "api", "client", "proxy"}, // the pure plan of services: timeline/packet explains it
	"simulate":    {"lib", "event", "api", "client", "kubelet"},
	"dashboard":   {"client"},
	"cluster": {
		"lib", "event", "api", "store", "pki", "cri", "runtime", "network", "auth", "apiserver", "client", "scheduler",
		"controllers", "kubelet", "proxy", "podroutes", "dns", "timeline", "simulate",
	},
	"bench": {"lib", "event", "client", "cluster"},
	"cli":   {"lib", "event", "api", "cluster", "bench", "timeline", "runtime", "pki", "dashboard"},
	"cmd":   {"cli"},

	"images": {}, // a module of its own
	"test":   {"cluster", "lib"},
}

// inside is the plan of the packages inside a room: which may import which of the same room. The root of the room, "",
// is on top. A package not listed may not exist.
var inside = map[string]map[string][]string{
	"apiserver": {
		"audit":        {},
		"backend":      {},
		"configreload": {},
		"encryption":   {},
		"fairness":     {},
		"objects":      {},
		"openapi":      {},
		"outbound":     {},
		"servertest":   {},
		"servicealloc": {},
		"table":        {},
		"tunnels":      {},
		"usage":        {},
		"wire":         {},
		"addresses":    {"outbound"},
		"delivery":     {"objects"},
		"watchcache":   {"objects"},
		"kubelets":     {"outbound", "tunnels"},
		"pipeline":     {"audit", "fairness", "wire"},
		"resources":    {"objects", "watchcache", "wire"},
		"discovery":    {"resources", "wire"},
		"crd":          {"objects", "outbound", "resources", "watchcache"},
		"access":       {"backend", "delivery", "objects", "pipeline", "resources", "wire"},
		"admission":    {"access", "outbound"},
		"aggregate":    {"backend", "discovery", "objects", "outbound", "pipeline"},
		"writes":       {"admission", "audit", "objects", "pipeline", "resources", "wire"},
		"options": {
			"access", "admission", "audit", "configreload", "encryption", "pipeline", "resources",
			"servicealloc",
		},
		"upkeep":  {"access", "addresses", "objects", "resources", "writes"},
		"connect": {"kubelets", "objects", "outbound", "pipeline", "resources", "wire", "writes"},
		"handlers": {
			"admission", "audit", "connect", "delivery", "kubelets", "objects", "outbound", "pipeline",
			"resources", "table", "wire", "writes",
		},
		"": {
			"access", "addresses", "admission", "aggregate", "audit", "crd", "discovery", "fairness",
			"handlers", "kubelets", "objects", "openapi", "outbound", "pipeline", "resources", "servicealloc",
			"tunnels", "upkeep", "usage", "watchcache", "writes",
		},
	},
	"scheduler": {
		"state":            {},
		"framework":        {"state"},
		"queue":            {"framework", "state"},
		"preempt":          {"framework", "state"},
		"extender":         {"framework", "state"},
		"dynamicresources": {"framework", "state"},
		"policy":           {"framework", "state"},
		"plugins":          {"framework", "policy", "state"},
		"explain":          {"framework", "plugins", "state"},
		"config":           {"framework", "plugins", "policy"},
		"core":             {"config", "framework", "plugins", "preempt", "state"}, // decides: no client, no clock, no goroutine
		"source":           {"config", "core", "dynamicresources", "framework", "plugins", "policy", "state"},
		"loop": {
			"config", "core", "dynamicresources", "explain", "extender", "framework", "plugins", "preempt", "queue",
			"source", "state",
		},
		"whatif": {
			"config", "core", "dynamicresources", "explain", "extender", "framework", "plugins", "preempt", "source",
			"state",
		},
	},
	"network": {
		"nft":       {},
		"conntrack": {},
		"cni":       {},
		"mesh":      {"nft"},
		"":          {"mesh"},
		"nettest":   {},
	},
	"proxy": {
		"services": {},
		"policy":   {},
		"":         {"services"},
	},
	"cluster": {
		"agents":         {"credentials", "version"},
		"datadir":        {},
		"configz":        {"agents", "credentials", "scheduling"},
		"fakenode":       {},
		"service":        {"datadir"},
		"flags":          {},
		"listen":         {},
		"version":        {},
		"storage":        {"datadir"},
		"credentials":    {"datadir", "storage", "version"},
		"requests":       {"credentials", "membership"},
		"marks":          {},
		"renewal":        {"credentials", "datadir", "membership", "storage"},
		"rights":         {},
		"scheduling":     {},
		"simulation":     {"scheduling"},
		"maintenance":    {"credentials", "datadir", "nodehost", "storage", "version"},
		"membership":     {"credentials", "datadir"},
		"nodehost":       {"datadir", "version"},
		"noderoles":      {"agents", "configz", "credentials", "datadir", "nodehost", "version"},
		"sharedsettings": {"nodehost", "storage"},
		"": {
			"agents", "configz", "credentials", "datadir", "fakenode", "listen", "maintenance", "marks",
			"membership", "nodehost", "noderoles", "renewal", "requests", "rights", "scheduling", "sharedsettings",
			"simulation", "storage", "version",
		},
		"assets":      {"", "flags", "storage", "version"},
		"clustertest": {""},
	},
	"timeline": {
		"story":     {},        // marks -> steps, pure
		"ledger":    {"story"}, // keeps marks
		"text":      {"story"}, // steps -> words
		"cause":     {},
		"packet":    {},
		"ask":       {"cause", "ledger", "packet", "story", "text"},
		"storytest": {},
	},
}

// testImports are the further imports that _test.go files may make.
var testOnly = []string{"cluster", "client"}

func TestLayers(t *testing.T) {
	for file, imports := range goFiles(t) {
		room, _, _ := strings.Cut(file, "/")
		allowed, ok := mayImport[room]
		if !ok {
			t.Errorf("%s: room %q is not in the plan", file, room)
			continue
		}
		isTest := strings.HasSuffix(file, "_test.go") || strings.HasSuffix(filepath.Dir(file), "test")
		for _, imp := range imports {
			rest, ours := strings.CutPrefix(imp, "keelson/")
			if !ours {
				continue
			}
			other, _, _ := strings.Cut(rest, "/")
			last := rest[strings.LastIndexByte(rest, '/')+1:]
			if strings.HasSuffix(last, "test") && room != "simulate" && !isTest {
				t.Errorf("%s imports %s: test packages are for tests", file, imp)
			}
			if other == room || slices.Contains(allowed, other) || isTest && slices.Contains(testOnly, other) {
				continue
			}
			t.Errorf("%s imports %s: %s may import only %v", file, imp, room, allowed)
		}
	}
}

// TestLayersInside: the packages inside a room import each other as its plan says. Tests may import more.
func TestLayersInside(t *testing.T) {
	made := map[string]bool{}
	for file, imports := range goFiles(t) {
		room, pkg := insidePackage(filepath.Dir(file))
		plan, planned := inside[room]
		if !planned {
			continue
		}
		allowed, ok := plan[pkg]
		isTest := strings.HasSuffix(file, "_test.go") || strings.HasSuffix(pkg, "test")
		if !ok && !isTest {
			t.Errorf("%s: package %q is not in the plan of %s", file, pkg, room)
		}
		for _, imp := range imports {
			other, of := insidePackage(strings.TrimPrefix(imp, "keelson/"))
			if !strings.HasPrefix(imp, "keelson/") || other != room || of == pkg {
				continue
			}
			made[room+" "+pkg+" "+of] = true
			if !isTest && !slices.Contains(allowed, of) {
				t.Errorf("%s imports %s: inside %s, %q may import only %q", file, imp, room, pkg, allowed)
			}
		}
	}
	for room, plan := range inside {
		for pkg, allowed := range plan {
			for _, other := range allowed {
				if !made[room+" "+pkg+" "+other] {
					t.Errorf("the plan of %s lets %q import %q, which no file does: take it out", room, pkg, other)
				}
			}
		}
	}
}

// barred are imports from which packages that only decide are kept: they could reach the API server or a log by them.
var barred = map[string][]string{
	"scheduler/core": {"keelson/client", "k8s.io/client-go", "log", "net"},
}

func TestDecidersImportNoClient(t *testing.T) {
	for file, imports := range goFiles(t) {
		for _, bad := range barred[filepath.Dir(file)] {
			for _, imp := range imports {
				if (imp == bad || strings.HasPrefix(imp, bad+"/")) && !strings.HasSuffix(file, "_test.go") {
					t.Errorf("%s imports %s: its package only decides", file, imp)
				}
			}
		}
	}
}

// TestExpressionsAreBounded: packages that let Kubernetes' packages make an environment for expressions have it bounded
// first.
func TestExpressionsAreBounded(t *testing.T) {
	makers := []string{
		"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation",
		"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel",
		"k8s.io/apiserver/pkg/admission/plugin/cel",
		"k8s.io/apiserver/pkg/authentication/cel",
		"k8s.io/apiserver/pkg/authorization/cel",
		"k8s.io/dynamic-resource-allocation/cel",
	}
	makes := map[string]string{}
	bounds := map[string]bool{}
	for file, imports := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, imp := range imports {
			if slices.Contains(makers, imp) {
				makes[filepath.Dir(file)] = file
			}
			if imp == "keelson/lib/celenv" {
				bounds[filepath.Dir(file)] = true
			}
		}
	}
	for pkg, file := range makes {
		if !bounds[pkg] {
			t.Errorf("%s makes an environment for expressions: call Bound or Base of lib/celenv before", file)
		}
	}
}

// insidePackage splits the path of a directory into the room and the package inside it, "" for the room's root.
func insidePackage(dir string) (room, pkg string) {
	room, rest, _ := strings.Cut(dir, "/")
	pkg, _, _ = strings.Cut(rest, "/")
	return room, pkg
}

// TestPlanIsTight: each import that the plan allows is made.
func TestPlanIsTight(t *testing.T) {
	made := map[string]bool{}
	for file, imports := range goFiles(t) {
		room, _, _ := strings.Cut(file, "/")
		for _, imp := range imports {
			if rest, ours := strings.CutPrefix(imp, "keelson/"); ours {
				other, _, _ := strings.Cut(rest, "/")
				made[room+" "+other] = true
			}
		}
	}
	for room, allowed := range mayImport {
		for _, other := range allowed {
			if !made[room+" "+other] {
				t.Errorf("the plan lets %s import %s, which no file does: take it out", room, other)
			}
		}
	}
}

func TestPlanHasNoCycle(t *testing.T) {
	noCycle(t, mayImport)
	for _, plan := range inside {
		noCycle(t, plan)
	}
}

func noCycle(t *testing.T, plan map[string][]string) {
	t.Helper()
	state := map[string]int{}
	var visit func(room string, path []string)
	visit = func(room string, path []string) {
		switch state[room] {
		case 1:
			t.Fatalf("the plan has a cycle: %v", append(path, room))
		case 0:
			state[room] = 1
			for _, next := range plan[room] {
				visit(next, append(path, room))
			}
			state[room] = 2
		}
	}
	for room := range plan {
		visit(room, nil)
	}
}

// TestRoomsAreInUse: docs/architecture.md has a line for each room and none for what is gone, and every package is
// imported, is a program, or holds only tests.
func TestRoomsAreInUse(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllSubmatch(page, -1) {
		told[string(row[1])] = true
	}
	rooms := map[string]bool{}
	packages := map[string]string{}
	imported := map[string]bool{}
	for file, imports := range goFiles(t) {
		room, _, _ := strings.Cut(file, "/")
		rooms[room] = true
		for _, imp := range imports {
			if imp != "keelson/"+filepath.Dir(file) { // its own external tests do not count
				imported[imp] = true
			}
		}
		if !strings.HasSuffix(file, "_test.go") {
			packages["keelson/"+filepath.Dir(file)] = file
		}
	}
	for room := range rooms {
		if !told[room] {
			t.Errorf("docs/architecture.md has no line for the room %s", room)
		}
	}
	for room := range told {
		if !rooms[room] {
			t.Errorf("docs/architecture.md has a line for %s, which has no code", room)
		}
	}
	for path, file := range packages {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if f.Name.Name != "main" && !imported[path] && !onlyTested[path] {
			t.Errorf("%s is imported by nobody", path)
		}
	}
}

// onlyTested packages serve the tests in their own directory and nothing else.
var onlyTested = map[string]bool{
	"keelson/cluster/clustertest/converge":  true,
	"keelson/scheduler/schedtest/reference": true,
	"keelson/test":                          true,
	"keelson/test/unmodified":               true,
}

// goFiles maps each Go file below a room to its imports.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || path == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || !strings.Contains(path, "/") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files[path] = []string{}
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			files[path] = append(files[path], p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
