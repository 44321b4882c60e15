// The client of the load-watcher API that e2e/suites/test_load_aware.py tries: load-watcher's JSON library, pinned.
module concerto.dev/e2e/watcher-client

go 1.26

require github.com/francoispqt/gojay v1.2.13
