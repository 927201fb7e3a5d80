package metrics

import (
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/fleet"
)

// Cluster is a cluster as it is observed.
type Cluster struct {
	fleet.Cluster
	Observed fleet.Observed
}

// Fleet tells of all clusters. Whatever Slurm says a state is, the cluster's
// other metrics are there.
func (s *Scrape) Fleet(clusters []Cluster) {
	for _, c := range clusters {
		s.Inc(Clusters, 1, string(c.Status))
		s.Set(ClusterInfo, 1, c.ID, c.Name, c.Version, c.Region)
		s.Set(Reachable, truth(c.Trouble == nil && c.ConfigHash != ""), c.ID)
		s.zero(Instances, c.ID)
		s.zero(Nodes, c.ID)
		s.zero(SlurmNodes, c.ID)
		s.zero(SlurmFlags, c.ID)
		s.Set(SlurmReady, 0, c.ID)
		for _, i := range c.Observed.Instances {
			s.Inc(Instances, 1, c.ID, string(i.State))
		}
		s.slurm(c)
		for _, g := range c.Observed.Groups {
			s.group(c, g)
		}
	}
}

// slurm tells what slurmctld said of the nodes.
func (s *Scrape) slurm(c Cluster) {
	for _, n := range c.Observed.Slurm {
		base := Other
		if len(n.State) > 0 {
			base = strings.ToLower(n.State[0])
			for _, flag := range n.State[1:] {
				s.known(slurmFlags, strings.ToLower(flag))
				s.Inc(SlurmFlags, 1, c.ID, strings.ToLower(flag))
			}
		}
		s.known(slurmBase, base)
		s.Inc(SlurmNodes, 1, c.ID, base)
		if n.Ready() && !n.HasAny("DRAIN", "POWER_DOWN", "POWER_DRAIN") {
			s.Inc(SlurmReady, 1, c.ID)
		}
	}
}

// known counts a word that is none of those known.
func (s *Scrape) known(words []string, word string) {
	if word == Other || !slices.Contains(words, word) {
		s.registry.Add(UnknownStates, 1)
	}
}

func (s *Scrape) group(c Cluster, g fleet.Group) {
	up, backing := 0, map[string][]fleet.Instance{}
	for _, i := range c.Observed.Instances {
		if i.GroupID == g.ID {
			backing[i.NodeName] = append(backing[i.NodeName], i)
		}
	}
	o := c.Observed
	for k := 1; k <= g.Max; k++ {
		// With the instances of its node alone: a cluster has thousands of both.
		o.Instances = backing[g.NodeName(k)]
		state := fleet.NodeState(o, g, g.NodeName(k))
		if state == fleet.None {
			continue // in no configuration
		}
		if state == fleet.NodeUp {
			up++
		}
		s.Inc(Nodes, 1, c.ID, state)
	}
	resting := 0
	pools := g.Pools()
	for _, p := range pools {
		if c.Observed.Now.Before(p.NotBefore) {
			resting++
		}
	}
	for m, v := range map[*Metric]float64{
		GroupMin: float64(g.Min), GroupMax: float64(g.Max), GroupUp: float64(up), GroupPools: float64(len(pools)), PoolsRest: float64(resting),
		BreakerOpen: truth(g.Breaker.Open), BreakerFailures: float64(g.Breaker.Failures),
	} {
		s.Set(m, v, c.ID, g.Name)
	}
}

// zero gives a cluster's series their zero, for every known value of the last
// label.
func (s *Scrape) zero(m *Metric, cluster string) {
	for _, v := range m.Labels[len(m.Labels)-1].Values {
		s.Inc(m, 0, cluster, v)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
