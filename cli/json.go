// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// jsonIndent is that of `kubectl -o json`.
const jsonIndent = "    "

// printJSON prints an answer for -o json.
func printJSON(out io.Writer, answer any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", jsonIndent)
	return encoder.Encode(answer)
}

// copyJSON prints the documents of a stream for -o json, each as soon as it is complete, with the fields that the
// server sent.
func copyJSON(out io.Writer, in io.Reader) error {
	documents := json.NewDecoder(in)
	for {
		var document json.RawMessage
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the answer: %w", err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, document, "", jsonIndent); err != nil {
			return fmt.Errorf("read the answer: %w", err)
		}
		indented.WriteByte('\n')
		if _, err := out.Write(indented.Bytes()); err != nil {
			return err
		}
	}
}
