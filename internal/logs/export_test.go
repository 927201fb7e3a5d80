package logs

// SetMaxSearched changes how many events a page of FilterLogEvents looks at, and
// returns what undoes it.
func SetMaxSearched(n int) (undo func()) {
	before := maxSearched
	maxSearched = n
	return func() { maxSearched = before }
}
