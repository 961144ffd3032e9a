// SPDX-License-Identifier: Apache-2.0

package log

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// Line is a log line in the format of slog.TextHandler.
type Line struct {
	// Raw is the line without its newline. A line that is not from slog, such as one of a crash trace, has no
	// attributes.
	Raw   string
	attrs []attr
}

type attr struct{ key, value string }

// ParseLine parses a line.
func ParseLine(raw string) Line {
	line := Line{Raw: raw}
	rest := raw
	for rest != "" {
		key, after, ok := word(rest, true)
		if !ok || !strings.HasPrefix(after, "=") {
			return Line{Raw: raw}
		}
		value, after, ok := word(after[1:], false)
		if !ok || after != "" && !strings.HasPrefix(after, " ") {
			return Line{Raw: raw}
		}
		line.attrs = append(line.attrs, attr{key, value})
		rest = strings.TrimPrefix(after, " ")
	}
	if len(line.attrs) == 0 || line.attrs[0].key != "time" {
		return Line{Raw: raw}
	}
	return line
}

// word parses a key or a value at the start of text.
func word(text string, key bool) (w, rest string, ok bool) {
	if strings.HasPrefix(text, `"`) {
		quoted, err := strconv.QuotedPrefix(text)
		if err != nil {
			return "", "", false
		}
		w, err = strconv.Unquote(quoted)
		return w, text[len(quoted):], err == nil
	}
	ends := " "
	if key {
		ends = "= "
	}
	end := strings.IndexAny(text, ends)
	if end < 0 {
		end = len(text)
	}
	return text[:end], text[end:], end > 0 || !key
}

// Get returns the value of an attribute; "" if there is none.
func (l Line) Get(key string) string {
	for _, a := range l.attrs {
		if a.key == key {
			return a.value
		}
	}
	return ""
}

// Time returns the time of the line; zero for a line that is not from slog.
func (l Line) Time() time.Time {
	t, err := time.Parse(time.RFC3339Nano, l.Get("time"))
	if err != nil {
		return time.Time{}
	}
	return t
}

// JSON returns the line as a JSON object of strings, in the order of the line. Of attributes with the same name the
// first one counts.
func (l Line) JSON() []byte {
	attrs := l.attrs
	if len(attrs) == 0 {
		attrs = []attr{{"msg", l.Raw}}
	}
	var out bytes.Buffer
	out.WriteByte('{')
	seen := map[string]bool{}
	for _, a := range attrs {
		if seen[a.key] {
			continue
		}
		if len(seen) > 0 {
			out.WriteByte(',')
		}
		seen[a.key] = true
		key, _ := json.Marshal(a.key) // strings can always be encoded
		value, _ := json.Marshal(a.value)
		out.Write(key)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes()
}
