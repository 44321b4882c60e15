// A client of the load-watcher API in Go, with the JSON library of load-watcher's own client (gojay), which decodes
// into typed fields and is strict about their types. It prints what it has read as lines: node, type, operator, value.
package main

import (
	"fmt"
	"net/http"
	"os"
	"sort"
	"time"

	"github.com/francoispqt/gojay"
)

type metric struct {
	name, kind, operator, rollup string
	value                        float64
}

func (m *metric) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	switch key {
	case "name":
		return decoder.String(&m.name)
	case "type":
		return decoder.String(&m.kind)
	case "operator":
		return decoder.String(&m.operator)
	case "rollup":
		return decoder.String(&m.rollup)
	case "value":
		return decoder.Float64(&m.value)
	}
	return nil
}

func (m *metric) NKeys() int { return 5 }

type metrics []metric

func (m *metrics) UnmarshalJSONArray(decoder *gojay.Decoder) error {
	one := metric{}
	if err := decoder.Object(&one); err != nil {
		return err
	}
	*m = append(*m, one)
	return nil
}

type metadata struct{ dataCenter string }

func (m *metadata) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	if key == "dataCenter" {
		return decoder.String(&m.dataCenter)
	}
	return nil
}

func (m *metadata) NKeys() int { return 1 }

type tags struct{}

func (t *tags) UnmarshalJSONObject(*gojay.Decoder, string) error { return nil }

func (t *tags) NKeys() int { return 0 }

type node struct {
	metrics  metrics
	tags     tags
	metadata metadata
}

func (n *node) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	switch key {
	case "metrics":
		return decoder.Array(&n.metrics)
	case "tags":
		return decoder.Object(&n.tags)
	case "metadata":
		return decoder.Object(&n.metadata)
	}
	return nil
}

func (n *node) NKeys() int { return 3 }

type nodes map[string]node

func (n nodes) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	one := node{}
	if err := decoder.Object(&one); err != nil {
		return err
	}
	n[key] = one
	return nil
}

func (n nodes) NKeys() int { return 0 }

type data struct{ nodes nodes }

func (d *data) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	if key == "NodeMetricsMap" {
		return decoder.Object(d.nodes)
	}
	return nil
}

func (d *data) NKeys() int { return 1 }

type window struct {
	duration   string
	start, end int64
}

func (w *window) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	switch key {
	case "duration":
		return decoder.String(&w.duration)
	case "start":
		return decoder.Int64(&w.start)
	case "end":
		return decoder.Int64(&w.end)
	}
	return nil
}

func (w *window) NKeys() int { return 3 }

type document struct {
	timestamp int64
	window    window
	source    string
	data      data
}

func (d *document) UnmarshalJSONObject(decoder *gojay.Decoder, key string) error {
	switch key {
	case "timestamp":
		return decoder.Int64(&d.timestamp)
	case "window":
		return decoder.Object(&d.window)
	case "source":
		return decoder.String(&d.source)
	case "data":
		return decoder.Object(&d.data)
	}
	return nil
}

func (d *document) NKeys() int { return 4 }

func read(address string) (*document, error) {
	client := http.Client{Timeout: 55 * time.Second}
	response, err := client.Get(address + "/watcher")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", response.Status)
	}
	decoder := gojay.BorrowDecoder(response.Body)
	defer decoder.Release()
	read := document{data: data{nodes: nodes{}}}
	return &read, decoder.Decode(&read)
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: watcher-client ADDRESS")
		os.Exit(2)
	}
	read, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := []string{}
	for name, one := range read.data.nodes {
		for _, m := range one.metrics {
			lines = append(lines, fmt.Sprintf("%s %s %s %g %s", name, m.kind, m.operator, m.value, one.metadata.dataCenter))
		}
	}
	sort.Strings(lines)
	fmt.Printf("%s %s %d\n", read.source, read.window.duration, read.window.end-read.window.start)
	for _, line := range lines {
		fmt.Println(line)
	}
}
