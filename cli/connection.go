// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"keelson/cluster/datadir"
)

// connection is the cluster that a question is about, found as kubectl finds it.
type connection struct {
	dataDir, kubeconfig, context, namespace string
	// loaded is the kubeconfig in use; find sets it.
	loaded clientcmd.ClientConfig
	// own means that it is the data directory's.
	own bool
}

func (n *connection) add(c *cobra.Command) {
	dataDirVar(c.Flags(), &n.dataDir)
	c.Flags().StringVar(&n.kubeconfig, "kubeconfig", "",
		"reach the cluster by this kubeconfig (default: $KUBECONFIG's, the data directory's)")
	c.Flags().StringVar(&n.context, "context", "", "context of the kubeconfig (default: its current one)")
	c.Flags().StringVarP(&n.namespace, "namespace", "n", "", "namespace of the object (default: the context's)")
	_ = c.RegisterFlagCompletionFunc("namespace", ofFlag(completeNames(namespaceNames)))
	c.PreRunE = func(c *cobra.Command, _ []string) error { return n.find(c.Flags()) }
}

// find finds the kubeconfig and, unless a flag names one, the namespace of its context.
func (n *connection) find(flags *pflag.FlagSet) error {
	n.loaded, n.own = chosenKubeconfig(flags)
	if n.namespace != "" {
		return nil
	}
	namespace, _, err := n.loaded.Namespace()
	if err != nil { // the request for the object reports it
		namespace = "default"
	}
	n.namespace = namespace
	return nil
}

// chosenKubeconfig is the kubeconfig that a command's flags choose: --kubeconfig, the directory of --data-dir, the
// files of KUBECONFIG, the default directory's where there is a cluster, else kubectl's own default. own means that it
// is a directory's.
func chosenKubeconfig(flags *pflag.FlagSet) (loaded clientcmd.ClientConfig, own bool) {
	value := func(name string) string {
		if f := flags.Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	directory := datadir.Dir(value("data-dir")).Kubeconfig()
	switch {
	case value("kubeconfig") != "":
		rules.ExplicitPath = value("kubeconfig")
	case flags.Changed("data-dir"):
		rules.ExplicitPath = directory
		own = true
	case os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "":
	default:
		_, err := os.Stat(directory)
		_, none := os.Stat(clientcmd.RecommendedHomeFile)
		if own = !os.IsNotExist(err) || none != nil; own {
			rules.ExplicitPath = directory
		}
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: value("context")}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), own
}

// only makes the kubeconfig at a path the one in use.
func (n *connection) only(path string) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	n.loaded = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	n.own = true
}

// rest is how to reach the cluster.
func (n *connection) rest() (*rest.Config, error) {
	if n.own || n.kubeconfig != "" {
		// a file that is missing or broken is reported by its name
		if _, err := datadir.ReadKubeconfig(datadir.Dir(n.dataDir), n.kubeconfig); err != nil {
			return nil, err
		}
	}
	return n.loaded.ClientConfig()
}
