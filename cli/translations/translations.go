// SPDX-License-Identifier: Apache-2.0

// Package translations keeps kubectl's packages from loading their message catalog where the language is English: it
// changes nothing there, and costs a fifth of the start of every keelson process. Importing the package is enough:
// kubectl translates while its packages are initialized, and this one is initialized before them, because it depends on
// less.
package translations

import (
	"os"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

var _ = i18n.SetLoadTranslationsFunc(func() error {
	if english(os.Getenv) {
		return nil
	}
	return i18n.LoadTranslations("kubectl", nil)
})

// english reports whether the locale of the environment is one that kubectl has no other language for: English, or
// none.
func english(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if locale := getenv(name); locale != "" {
			language, _, _ := strings.Cut(locale, ".")
			return language == "C" || language == "POSIX" || strings.HasPrefix(language, "en")
		}
	}
	return true
}
