// SPDX-License-Identifier: Apache-2.0

package words

// ANSI sequences for colors. Red is for what fails, green for what is well.
const (
	Bold  = "\x1b[1m"
	Dim   = "\x1b[2m"
	Red   = "\x1b[31m"
	Green = "\x1b[32m"
	reset = "\x1b[0m"
)

// Colors reports whether a text may have colors.
type Colors bool

// With returns a text in a style; "" is none.
func (c Colors) With(style, text string) string {
	if !c || style == "" || text == "" {
		return text
	}
	return style + text + reset
}
