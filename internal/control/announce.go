package control

import "sync"

// announcer tells those who wait for a node that Slurm resumed it.
type announcer struct {
	mu      sync.Mutex
	waiting map[string]map[chan struct{}]struct{} // by cluster/node
}

// subscribe returns a channel that gets a value at each announcement.
func (a *announcer) subscribe(cluster, node string) (announced <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	key := cluster + "/" + node
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = map[string]map[chan struct{}]struct{}{}
	}
	if a.waiting[key] == nil {
		a.waiting[key] = map[chan struct{}]struct{}{}
	}
	a.waiting[key][ch] = struct{}{}
	return ch, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting[key], ch)
		if len(a.waiting[key]) == 0 {
			delete(a.waiting, key)
		}
	}
}

func (a *announcer) announce(cluster string, nodes []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range nodes {
		for ch := range a.waiting[cluster+"/"+n] {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}
