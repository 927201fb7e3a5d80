package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// scene is one node g-1 of the group g, changed by the cases of the tables.
type scene struct {
	group     fleet.Group
	instances []fleet.Instance
	node      fleet.Node
	slurm     []string // nil: slurmctld has not said anything
	reason    string
	now       time.Time
	since     time.Time // of the state that slurmctld shows
	old       bool      // it has not said anything since
	clockSet  time.Time
}

func (s scene) plan() ([]fleet.Action, time.Time) {
	o := fleet.Observed{Now: s.now, Groups: []fleet.Group{s.group}, Instances: s.instances, Nodes: map[string]fleet.Node{}}
	if s.group.ID == "" {
		o.Groups = nil
	}
	if s.node.Name != "" {
		o.Nodes[s.node.Name] = s.node
	}
	if s.slurm != nil {
		o.Slurm = map[string]slurm.Node{"g-1": {Name: "g-1", State: s.slurm, Reason: s.reason}}
	}
	if !s.since.IsZero() {
		o.Since = map[string]time.Time{"g-1": s.since}
	}
	o.Confirmed, o.ClockSet = s.now, s.clockSet
	if s.old {
		o.Confirmed = s.since
	}
	return fleet.Plan(o)
}

// wanted is a node that Slurm resumed, with a healthy instance.
func wanted() scene {
	return scene{
		now:   noon,
		group: fleet.Group{ID: "pcs_g", ClusterID: "pcs_c", Name: "g", Status: fleet.Active, Max: 1, InstanceTypes: []string{"big", "small"}, SubnetIDs: []string{"subnet-1", "subnet-2"}},
		node:  fleet.Node{ClusterID: "pcs_c", GroupID: "pcs_g", Name: "g-1", Index: 1, Want: true, WantAt: noon.Add(-time.Minute)},
		instances: []fleet.Instance{{
			ID: "i-1", State: fleet.Running, ClusterID: "pcs_c", GroupID: "pcs_g", NodeName: "g-1",
			LaunchedAt: noon.Add(-time.Minute), StartedAt: noon.Add(-time.Minute), RegisteredAt: noon.Add(-59 * time.Second), ReadyAt: noon.Add(-58 * time.Second),
		}},
		slurm: []string{"ALLOCATED", "CLOUD"},
	}
}

// off is a node without an instance that nobody wants.
func off() scene {
	s := wanted()
	s.instances, s.node.Want = nil, false
	s.slurm = []string{"IDLE", "CLOUD", "POWERED_DOWN"}
	return s
}

// rest are pools that had no room a moment ago.
func rest(pools ...string) (out []fleet.Pool) {
	for _, p := range pools {
		typ, subnet, _ := strings.Cut(p, "/")
		out = append(out, fleet.Pool{Type: typ, SubnetID: subnet, Code: "Full", Text: "no room", Refusals: 1, NotBefore: noon.Add(time.Minute)})
	}
	return out
}

func text(actions []fleet.Action) string {
	var out []string
	for _, a := range actions {
		what := a.Node
		if a.Instance != "" {
			what = a.Instance
		}
		line := string(a.Kind) + " " + what
		if a.Code != "" {
			line += " " + string(a.Code)
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func TestPlan(t *testing.T) {
	const foreign = "bad disk [alice]"
	for _, tt := range []struct {
		name string
		base func() scene
		edit func(*scene)
		want string
		next time.Duration // from now; 0: no time is set
	}{
		{name: "leaves_a_healthy_node_alone", base: wanted},
		{name: "leaves_an_unwanted_node_alone", base: off},
		{name: "leaves_an_unknown_node_alone", base: off, edit: func(s *scene) { s.node, s.slurm = fleet.Node{}, nil }},

		{name: "lacks_what_every_pool_refuses", base: off, edit: func(s *scene) {
			s.node.Want = true
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
		}, want: "lack g-1 INSUFFICIENT_CAPACITY", next: time.Minute},
		{name: "takes_the_pool_that_is_left", base: off, edit: func(s *scene) {
			s.node.Want = true
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1")
		}, want: "assign g-1"},
		{name: "holds_idle_nodes_out_while_all_pools_rest", base: off, edit: func(s *scene) {
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
		}, want: "hold-out g-1 INSUFFICIENT_CAPACITY", next: time.Minute},
		{name: "does_not_hold_out_what_a_person_drained", base: off, edit: func(s *scene) {
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
			s.slurm, s.reason = append(s.slurm, "DRAIN"), foreign
		}, next: time.Minute},
		{name: "does_not_recover_while_all_pools_rest", base: off, edit: func(s *scene) {
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, fleet.LaunchReason("Full")
		}, next: time.Minute},
		{name: "recovers_when_a_pool_may_be_tried", base: off, edit: func(s *scene) {
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1")
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, fleet.LaunchReason("Full")
		}, want: "recover g-1"},
		{name: "waits_for_the_try_in_the_only_pool", base: off, edit: func(s *scene) {
			s.node.Want = true
			s.group.InstanceTypes, s.group.SubnetIDs = s.group.InstanceTypes[:1], s.group.SubnetIDs[:1]
			s.group.Refused = []fleet.Pool{{Type: "big", SubnetID: "subnet-1", Code: "Full", Refusals: 1, NotBefore: noon}}
			s.instances = []fleet.Instance{{ID: "i-2", State: fleet.Pending, GroupID: "pcs_g", NodeName: "", Type: "big", SubnetID: "subnet-1"}}
		}},
		{name: "fails_an_instance_whose_registration_is_invalid", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt = time.Time{}
			s.slurm, s.reason = []string{"IDLE", "CLOUD", "DRAIN", "INVALID_REG"}, "Low RealMemory (reported:900 < 100.00% of configured:2000)"
		}, want: "fail i-1 INVALID_REGISTRATION"},

		{name: "replaces_a_node_that_slurm_drained_as_invalid", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"ALLOCATED", "CLOUD", "DRAIN", "INVALID_REG"}, "Low socket*core*thread count, Low CPUs"
		}, want: "replace i-1 NODE_UNUSABLE"},
		{name: "recovers_what_slurm_drained_as_invalid", base: off, edit: func(s *scene) {
			s.slurm, s.reason = append(s.slurm, "DRAIN"), "Low RealMemory (reported:900 < 100.00% of configured:2000)"
		}, want: "recover g-1"},

		{name: "assigns_an_instance_to_a_wanted_node", base: off, edit: func(s *scene) { s.node.Want = true }, want: "assign g-1"},
		{name: "assigns_before_slurmctld_answers", base: off, edit: func(s *scene) { s.node.Want, s.slurm = true, nil }, want: "assign g-1"},
		{name: "assigns_in_a_group_being_updated", base: off, edit: func(s *scene) { s.node.Want, s.group.Status = true, fleet.Updating }, want: "assign g-1"},
		{name: "assigns_nothing_in_a_group_being_created", base: off, edit: func(s *scene) { s.node.Want, s.group.Status = true, fleet.Creating }},
		{name: "assigns_nothing_in_a_group_being_deleted", base: off, edit: func(s *scene) { s.node.Want, s.group.Status = true, fleet.Deleting }},
		{name: "assigns_nothing_in_a_failed_group", base: off, edit: func(s *scene) { s.node.Want, s.group.Status = true, fleet.CreateFailed }},
		{name: "assigns_in_a_group_whose_update_failed", base: off, edit: func(s *scene) { s.node.Want, s.group.Status = true, fleet.UpdateFailed }, want: "assign g-1"},
		{name: "waits_for_the_back_off", base: off, edit: func(s *scene) { s.node.Want, s.node.NotBefore = true, noon.Add(7*time.Second) }, next: 7 * time.Second},
		{name: "assigns_when_the_back_off_ends", base: off, edit: func(s *scene) { s.node.Want, s.node.NotBefore = true, noon }, want: "assign g-1"},
		{name: "does_not_wake_for_an_unwanted_nodes_back_off", base: off, edit: func(s *scene) { s.node.NotBefore = noon.Add(7 * time.Second) }},
		{name: "waits_for_the_former_instance_to_end", base: wanted, edit: func(s *scene) { s.instances[0].State = fleet.ShuttingDown }, want: "stop i-1"},
		{name: "assigns_anew_next_to_a_terminated_instance", base: wanted, edit: func(s *scene) {
			s.instances[0].State, s.instances[0].TerminatedAt = fleet.Terminated, noon
		}, want: "assign g-1", next: fleet.KeepTerminated},
		{name: "assigns_although_slurms_state_is_stale", base: off, edit: func(s *scene) {
			s.node.Want, s.slurm = true, []string{"IDLE", "CLOUD", "POWERING_DOWN"}
		}, want: "assign g-1"},

		{name: "starts_a_pending_instance", base: wanted, edit: func(s *scene) {
			s.instances[0] = fleet.Instance{ID: "i-1", State: fleet.Pending, GroupID: "pcs_g", NodeName: "g-1"}
		}, want: "start i-1"},
		{name: "waits_for_the_registration", base: wanted, edit: func(s *scene) {
			s.instances[0].RegisteredAt, s.instances[0].ReadyAt = time.Time{}, time.Time{}
		}, next: fleet.BootstrapTimeout - time.Minute},
		{name: "fails_an_instance_that_does_not_register", base: wanted, edit: func(s *scene) {
			s.instances[0].RegisteredAt, s.instances[0].ReadyAt = time.Time{}, time.Time{}
			s.now = s.instances[0].StartedAt.Add(fleet.BootstrapTimeout)
		}, want: "fail i-1 BOOTSTRAP_TIMEOUT"},
		{name: "marks_an_instance_up", base: wanted, edit: func(s *scene) { s.instances[0].ReadyAt = time.Time{} }, want: "mark-up i-1"},
		{name: "does_not_mark_up_what_powers_up", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt = time.Time{}
			s.slurm = []string{"ALLOCATED", "CLOUD", "POWERING_UP"}
		}},
		{name: "does_not_mark_up_what_slurm_has_not_seen", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt, s.slurm = time.Time{}, nil
		}},

		{name: "retires_the_instance_of_a_suspended_node", base: wanted, edit: func(s *scene) { s.node.Want = false }, want: "retire i-1 IDLE"},
		{name: "retires_a_pending_instance_that_is_not_wanted", base: wanted, edit: func(s *scene) {
			s.instances[0] = fleet.Instance{ID: "i-1", State: fleet.Pending, GroupID: "pcs_g", NodeName: "g-1"}
			s.node.Want = false
		}, want: "retire i-1 IDLE"},
		{name: "retires_when_the_group_is_being_deleted", base: wanted, edit: func(s *scene) { s.group.Status = fleet.Deleting }, want: "retire i-1 GROUP_DELETED"},
		{name: "retires_when_the_group_is_gone", base: wanted, edit: func(s *scene) { s.group = fleet.Group{} }, want: "retire i-1 GROUP_DELETED"},
		{name: "retires_above_the_maximum", base: wanted, edit: func(s *scene) { s.group.Max = 0 }, want: "retire i-1 SCALE_IN"},
		{name: "keeps_the_instance_of_a_group_whose_update_failed", base: wanted, edit: func(s *scene) { s.group.Status = fleet.UpdateFailed }},
		{name: "leaves_instances_of_no_node_alone", base: wanted, edit: func(s *scene) { s.instances[0].NodeName, s.node.Want = "", false }},

		{name: "stops_what_is_shutting_down", base: wanted, edit: func(s *scene) { s.instances[0].State, s.node.Want = fleet.ShuttingDown, false }, want: "stop i-1"},
		{name: "keeps_a_terminated_instance_for_an_hour", base: off, edit: func(s *scene) {
			s.instances = []fleet.Instance{{ID: "i-0", State: fleet.Terminated, NodeName: "g-1", GroupID: "pcs_g", TerminatedAt: noon.Add(-59 * time.Minute)}}
		}, next: time.Minute},
		{name: "forgets_a_terminated_instance_after_an_hour", base: off, edit: func(s *scene) {
			s.instances = []fleet.Instance{{ID: "i-0", State: fleet.Terminated, NodeName: "g-1", GroupID: "pcs_g", TerminatedAt: noon.Add(-time.Hour)}}
		}, want: "forget i-0"},

		{name: "sets_a_failed_node_down", base: off, edit: func(s *scene) { s.node.Down = "Failed to launch backing instance (Error Code: X)" }, want: "set-down g-1"},
		{name: "sets_a_failed_node_down_while_its_instance_ends", base: wanted, edit: func(s *scene) {
			s.instances[0].State, s.node.Want, s.node.Down = fleet.ShuttingDown, false, "pcs: gone"
		}, want: "stop i-1; set-down g-1"},
		{name: "does_not_set_down_what_slurm_does_not_know", base: off, edit: func(s *scene) { s.node.Down, s.slurm = "pcs: x", nil }},

		{name: "recovers_a_node_that_powers_down_without_an_instance", base: off, edit: func(s *scene) { s.slurm = []string{"IDLE", "CLOUD", "POWERING_DOWN"} }, want: "recover g-1"},
		{name: "does_not_recover_while_the_instance_lives", base: wanted, edit: func(s *scene) {
			s.node.Want, s.instances[0].State, s.slurm = false, fleet.ShuttingDown, []string{"IDLE", "CLOUD", "POWERING_DOWN"}
		}, want: "stop i-1"},
		{name: "does_not_recover_what_slurm_is_about_to_power_down", base: off, edit: func(s *scene) { s.slurm = []string{"DOWN", "CLOUD", "POWER_DOWN"}; s.reason = "pcs: x" }},
		{name: "recovers_a_node_that_openpcs_set_down", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "pcs: instance i-1 is gone [root@x]"
		}, want: "recover g-1"},
		{name: "recovers_a_node_whose_launch_failed", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "Failed to launch backing instance (Error Code: X)"
		}, want: "recover g-1"},
		{name: "recovers_a_node_whose_bootstrap_failed", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "Backing Instance Failed To Bootstrap: i-1 : Not responding"
		}, want: "recover g-1"},
		{name: "recovers_a_node_whose_resume_timed_out", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "ResumeTimeout reached"
		}, want: "recover g-1"},
		{name: "leaves_a_node_down_that_a_person_set_down", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, foreign
		}},
		{name: "recovers_nothing_that_a_person_set_down_while_it_powers_down", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERING_DOWN"}, foreign
		}},
		{name: "leaves_a_drained_node_drained", base: off, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "DRAIN", "POWERED_DOWN"}, "pcs: x"
		}},

		{name: "gives_up_a_node_that_slurm_does_not_resume", base: wanted, edit: func(s *scene) {
			s.node.Early, s.node.WantAt = true, noon.Add(-fleet.EarlyLimit)
		}, want: "give-up g-1"},
		{name: "adopts_an_early_node_whose_resume_was_lost", base: wanted, edit: func(s *scene) {
			s.node.Early, s.node.WantAt, s.slurm = true, noon.Add(-fleet.EarlyLimit), []string{"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
		}, want: "adopt g-1"},
		{name: "waits_for_the_resume_of_an_early_node", base: wanted, edit: func(s *scene) {
			s.node.Early, s.node.WantAt = true, noon.Add(-fleet.EarlyLimit+time.Second)
		}, next: time.Second},

		{name: "looks_before_it_gives_up_an_early_node", base: wanted, edit: func(s *scene) {
			s.node.Early, s.node.WantAt = true, noon.Add(-fleet.EarlyLimit)
			s.old, s.since = true, noon.Add(-time.Hour)
		}, want: "look "},
		{name: "looks_before_it_believes_what_is_old", base: wanted, edit: func(s *scene) {
			s.slurm, s.since, s.old = []string{"IDLE", "CLOUD", "POWERED_DOWN"}, noon.Add(-time.Hour), true
		}, want: "look "},
		{name: "does_not_fail_a_boot_for_a_clock_that_was_set", base: wanted, edit: func(s *scene) {
			i := &s.instances[0]
			i.StartedAt, i.RegisteredAt, i.ReadyAt = noon.Add(-time.Hour), time.Time{}, time.Time{}
			s.clockSet = noon.Add(-time.Minute)
		}, next: fleet.BootstrapTimeout - time.Minute},
		{name: "sets_a_node_down_whose_slurmd_hangs", base: wanted, edit: func(s *scene) {
			s.slurm, s.since = []string{"ALLOCATED", "CLOUD", "NOT_RESPONDING"}, noon.Add(-fleet.SlurmdTimeout)
		}, want: "set-down i-1 NODE_UNUSABLE"},
		{name: "bears_a_slurmd_that_hangs_for_a_while", base: wanted, edit: func(s *scene) {
			s.slurm, s.since = []string{"ALLOCATED", "CLOUD", "NOT_RESPONDING"}, noon.Add(-fleet.SlurmdTimeout+time.Second)
		}, next: time.Second},
		{name: "bears_a_node_that_reboots", base: wanted, edit: func(s *scene) {
			s.slurm, s.since = []string{"IDLE", "CLOUD", "NOT_RESPONDING", "REBOOT_ISSUED"}, noon.Add(-time.Hour)
		}},
		{name: "looks_before_it_sets_a_hung_node_down", base: wanted, edit: func(s *scene) {
			s.slurm, s.since, s.old = []string{"ALLOCATED", "CLOUD", "NOT_RESPONDING"}, noon.Add(-time.Hour), true
		}, want: "look "},
		{name: "adopts_what_slurm_powers_up", base: off, edit: func(s *scene) {
			s.slurm, s.since = []string{"ALLOCATED", "CLOUD", "POWERING_UP"}, noon.Add(-time.Hour)
		}, want: "adopt g-1"},
		{name: "sets_down_what_has_no_instance", base: off, edit: func(s *scene) {
			s.slurm, s.since = []string{"IDLE", "CLOUD"}, noon.Add(-time.Hour)
		}, want: "set-down g-1"},
		{name: "does_not_adopt_what_a_person_set_down", base: off, edit: func(s *scene) {
			s.slurm, s.reason, s.since = []string{"DOWN", "CLOUD", "POWERING_UP"}, "person says so", noon.Add(-time.Hour)
		}},
		{name: "drops_the_wish_for_a_node_above_the_maximum", base: off, edit: func(s *scene) {
			s.node.Want, s.group.Max, s.slurm = true, 0, nil
		}, want: "give-up g-1"},
		{name: "drops_the_failure_of_a_node_above_the_maximum", base: off, edit: func(s *scene) {
			s.node.Down, s.group.Max, s.slurm = "pcs: x", 0, nil
		}, want: "give-up g-1"},
		{name: "powers_a_static_node_up", base: off, edit: func(s *scene) { s.group.Min = 1 }, want: "power-up g-1"},
		{name: "does_not_power_up_what_slurm_powers_up", base: off, edit: func(s *scene) {
			s.group.Min, s.slurm = 1, []string{"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
		}},
		{name: "does_not_power_up_before_slurmctld_answers", base: off, edit: func(s *scene) { s.group.Min, s.slurm = 1, nil }},
		{name: "does_not_power_up_a_drained_node", base: off, edit: func(s *scene) { s.group.Min = 1; s.slurm = append(s.slurm, "DRAIN") }},
		{name: "does_not_power_up_a_node_that_a_person_set_down", base: off, edit: func(s *scene) {
			s.group.Min, s.slurm, s.reason = 1, []string{"DOWN", "CLOUD", "POWERED_DOWN"}, foreign
		}},
		{name: "recovers_a_static_node_first", base: off, edit: func(s *scene) {
			s.group.Min, s.slurm = 1, []string{"IDLE", "CLOUD", "POWERING_DOWN"}
		}, want: "recover g-1"},
		{name: "a_static_node_rests_after_a_failure", base: off, edit: func(s *scene) { s.group.Min, s.node.NotBefore = 1, noon.Add(20*time.Second) }, next: 20 * time.Second},
		{name: "does_not_power_up_in_a_group_being_deleted", base: off, edit: func(s *scene) { s.group.Min, s.group.Status = 1, fleet.Deleting }},

		{name: "powers_down_a_node_that_stopped_answering", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "NOT_RESPONDING"}, "Not responding"
		}, want: "power-down i-1 NODE_UNUSABLE"},
		{name: "powers_down_a_node_that_went_silent_before_it_was_marked_up", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt = time.Time{}
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "NOT_RESPONDING"}, "Not responding"
		}, want: "power-down i-1 NODE_UNUSABLE"},
		{name: "powers_down_a_node_that_rebooted_by_itself", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD"}, "Node unexpectedly rebooted"
		}, want: "power-down i-1 NODE_UNUSABLE"},
		{name: "replaces_what_slurm_rebooted_into_down", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD"}, "new kernel : reboot issued : reboot complete"
		}, want: "power-down i-1 NODE_UNUSABLE"},
		{name: "replaces_what_comes_up_from_before_an_update", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt, s.group.Revision = time.Time{}, 1
			s.slurm = []string{"IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
		}, want: "retire i-1 GROUP_UPDATED"},
		{name: "waits_for_what_may_have_a_job_already", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt, s.instances[0].ReleasedAt, s.group.Revision = time.Time{}, noon.Add(-time.Second), 1
			s.slurm = []string{"IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
		}},
		{name: "waits_until_an_update_is_in_force", base: wanted, edit: func(s *scene) {
			s.instances[0].ReadyAt, s.group.Revision, s.group.Status = time.Time{}, 1, fleet.Updating
			s.slurm = []string{"IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}
		}},
		{name: "leaves_a_running_node_down_that_a_person_set_down", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD"}, foreign
		}},
		{name: "asks_for_the_power_down_once", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWER_DOWN"}, "Not responding"
		}},
		{name: "leaves_a_rebooting_node_alone", base: wanted, edit: func(s *scene) {
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "REBOOT_ISSUED"}, "Not responding"
		}},
		{name: "replaces_a_node_of_an_older_template", base: wanted, edit: func(s *scene) { s.group.Revision = 1 }, want: "replace i-1 GROUP_UPDATED"},
		{name: "replaces_a_node_of_an_update_that_was_refused", base: wanted, edit: func(s *scene) {
			s.instances[0].GroupRevision, s.group.Status = 1, fleet.UpdateFailed
		}, want: "replace i-1 GROUP_UPDATED"},
		{name: "replaces_nothing_while_the_update_is_not_done", base: wanted, edit: func(s *scene) { s.group.Revision, s.group.Status = 1, fleet.Updating }},
		{name: "asks_for_a_replacement_once", base: wanted, edit: func(s *scene) {
			s.group.Revision, s.slurm = 1, []string{"ALLOCATED", "CLOUD", "DRAIN", "POWER_DRAIN"}
		}},
		{name: "does_not_replace_what_a_person_drained", base: wanted, edit: func(s *scene) {
			s.group.Revision, s.slurm, s.reason = 1, []string{"IDLE", "CLOUD", "DRAIN"}, foreign
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.base()
			if tt.edit != nil {
				tt.edit(&s)
			}
			actions, next := s.plan()
			if got := text(actions); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			want := time.Time{}
			if tt.next != 0 {
				want = s.now.Add(tt.next)
			}
			if !next.Equal(want) {
				t.Errorf("looks again at %v, want %v", next, want)
			}
			for _, a := range actions {
				if (a.Kind == fleet.Retire || a.Kind == fleet.Fail || a.Kind == fleet.SetDown) && a.Reason == "" {
					t.Errorf("%s has no reason: nobody could explain it", a.Kind)
				}
			}
		})
	}
}

// D3, D6: a drained node whose instance is lost must go down, so that its job
// is requeued, but what a person wrote stays.
func TestD3_PersonsReasonStaysWhenTheInstanceIsLost(t *testing.T) {
	s := off()
	s.node.Down = "pcs: instance i-1 is gone"
	s.slurm, s.reason = []string{"ALLOCATED", "CLOUD", "DRAIN"}, "bad disk [alice]"
	actions, _ := s.plan()
	if text(actions) != "set-down g-1" {
		t.Fatalf("actions = %q, want the node set down", text(actions))
	}
	if !strings.Contains(actions[0].Reason, "bad disk") {
		t.Errorf("the reason becomes %q; alice wrote %q", actions[0].Reason, s.reason)
	}
	// Likewise when its slurmd hangs.
	s = wanted()
	s.slurm, s.reason, s.since = []string{"ALLOCATED", "CLOUD", "DRAIN", "NOT_RESPONDING"}, "bad disk [alice]", noon.Add(-time.Hour)
	if actions, _ = s.plan(); text(actions) != "set-down i-1 NODE_UNUSABLE" || !strings.Contains(actions[0].Reason, "bad disk") {
		t.Errorf("a drained node that hangs: %+v", actions)
	}
}

// I5: whatever queues a group is in, each of its static nodes is one thing.
func TestI5_StaticNodesArePoweredUpOnceEach(t *testing.T) {
	o := fleet.Observed{Now: noon, Nodes: map[string]fleet.Node{}, Slurm: map[string]slurm.Node{}}
	for _, name := range []string{"b", "a"} {
		g := fleet.Group{ID: "pcs_" + name, Name: name, Status: fleet.Active, Min: 3, Max: 5}
		o.Groups = append(o.Groups, g)
		for n := 1; n <= g.Max; n++ {
			o.Slurm[g.NodeName(n)] = slurm.Node{Name: g.NodeName(n), State: []string{"IDLE", "CLOUD", "POWERED_DOWN"}}
		}
	}
	actions, _ := fleet.Plan(o)
	if got, want := text(actions), "power-up a-1; power-up a-2; power-up a-3; power-up b-1; power-up b-2; power-up b-3"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// The reason of who drained a node outlives what openpcs sets it down for.
func TestPlanKeepsTheReasonOfADrain(t *testing.T) {
	for name, edit := range map[string]func(*scene){
		"its_instance_failed": func(s *scene) { s.node.Down = "pcs: gone" },
		"it_never_had_one":    func(s *scene) { s.since = noon.Add(-time.Hour) },
		"slurm_had_drained_it": func(s *scene) {
			s.node.Down, s.reason = "pcs: gone", "Low RealMemory (reported:1 < 100.00% of configured:2)"
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := off()
			s.slurm, s.reason = []string{"IDLE", "CLOUD", "DRAIN"}, "person: disk"
			edit(&s)
			if actions, _ := s.plan(); len(actions) != 1 || actions[0].Kind != fleet.SetDown || actions[0].Reason != s.reason {
				t.Errorf("plan = %+v", actions)
			}
		})
	}
}

func TestPlanIsInAStableOrder(t *testing.T) {
	o := fleet.Observed{Now: noon, Nodes: map[string]fleet.Node{}}
	for _, name := range []string{"z", "a", "m"} {
		g := fleet.Group{ID: "pcs_" + name, Name: name, Status: fleet.Active, Max: 12, InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}
		o.Groups = append(o.Groups, g)
		for n := 1; n <= g.Max; n++ {
			o.Nodes[g.NodeName(n)] = fleet.Node{Name: g.NodeName(n), Want: true}
		}
	}
	first, _ := fleet.Plan(o)
	if len(first) != 36 || first[0].Node != "a-1" || first[11].Node != "a-12" || first[35].Node != "z-12" {
		t.Errorf("order is %q", text(first))
	}
	for range 20 {
		slices.Reverse(o.Groups)
		if again, _ := fleet.Plan(o); !slices.Equal(again, first) {
			t.Fatalf("order changed: %q", text(again))
		}
	}
}

func TestFailInstance(t *testing.T) {
	i := fleet.Instance{ID: "i-1", State: fleet.Running}
	n := fleet.Node{Name: "g-1", Want: true, Early: true, Jobs: []int{7}}
	var waits []time.Duration
	for range 12 {
		i.State, n.Want, n.Early, n.Jobs = fleet.Running, true, true, []int{7}
		i, n = fleet.FailInstance(i, n, "LAUNCH_FAILED", "no room", "Failed to launch", noon)
		if i.State != fleet.ShuttingDown || i.FailureCode != "LAUNCH_FAILED" || i.Failure != "no room" || i.StateReason != "no room" {
			t.Fatalf("instance = %+v", i)
		}
		if n.Want || n.Early || n.Jobs != nil || n.Down != "Failed to launch" || n.LastFailure != "no room" {
			t.Fatalf("node = %+v", n)
		}
		waits = append(waits, n.NotBefore.Sub(noon))
	}
	if got, want := fmt.Sprint(waits), "[5s 10s 20s 40s 1m20s 2m40s 5m20s 10m0s 10m0s 10m0s 10m0s 10m0s]"; got != want {
		t.Errorf("waits = %v, want %v", got, want)
	}
	n.Attempts = 1 << 40 // no shift may run over
	if _, n = fleet.FailInstance(i, n, "", "", "", noon); n.NotBefore.Sub(noon) != 10*time.Minute {
		t.Errorf("after very many failures the wait is %v", n.NotBefore.Sub(noon))
	}
	gone := fleet.Instance{ID: "i-2", State: fleet.Terminated, StateReason: "it shut itself down"}
	if gone, _ = fleet.FailInstance(gone, fleet.Node{}, "X", "x", "x", noon); gone.State != fleet.Terminated || gone.StateReason != "it shut itself down" {
		t.Errorf("a terminated instance became %+v", gone)
	}
}

func TestNodeIndex(t *testing.T) {
	for _, tt := range []struct {
		group, node string
		want        int
	}{
		{"a", "a-1", 1},
		{"a", "a-17", 17},
		{"a", "a-b-1", 0},
		{"a-b", "a-b-1", 1},
		{"a-b", "a-1", 0},
		{"a", "a-1-1", 0},
		{"a-1", "a-1-1", 1},
		{"a-1", "a-1", 0},
		{"x-1", "x-1-3", 3},
		{"x", "x-1-3", 0},
		{"a-dy-b", "a-dy-b-2", 2},
		{"x-st-y", "x-st-y-10", 10},
		{"a", "a-0", 0},
		{"a", "a-01", 0},
		{"a", "a-+1", 0},
		{"a", "a--1", 0},
		{"a", "a- 1", 0},
		{"a", "a-1 ", 0},
		{"a", "a-", 0},
		{"a", "a", 0},
		{"a", "", 0},
		{"a", "A-1", 0},
		{"a", "aa-1", 0},
		{"a", "a-99999999999999999999", 0},
		{"a", "a-0x1", 0},
		{"a", "a-1e1", 0},
	} {
		if got := (fleet.Group{Name: tt.group}).NodeIndex(tt.node); got != tt.want {
			t.Errorf("group %s, node %q: index %d, want %d", tt.group, tt.node, got, tt.want)
		}
	}
	// A group that is gone has no nodes, not even those with a bare number.
	if got := (fleet.Group{}).NodeIndex("-1"); got > 1 {
		t.Errorf("no group: %d", got)
	}
}

func TestNeedsReplacement(t *testing.T) {
	base := fleet.Group{
		SubnetIDs: []string{"subnet-1"}, PurchaseOption: "ONDEMAND", ProfileARN: "arn:p", Max: 2, SpotStrategy: "lowest-price", TemplateVersion: "1",
		Launch:    fleet.Launch{ImageID: "ami-1", SecurityGroups: []string{"sg-1"}, UserData: []byte("x"), Tags: map[string]string{"a": "b"}},
		Lifecycle: &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{{Name: "a"}}}},
	}
	for _, tt := range []struct {
		name string
		edit func(*fleet.Group)
		want bool
	}{
		{"nothing", func(*fleet.Group) {}, false},
		{"more_subnets", func(g *fleet.Group) { g.SubnetIDs = []string{"subnet-1", "subnet-2"} }, false},
		{"higher_maximum", func(g *fleet.Group) { g.Max = 9 }, false},
		{"idle_time", func(g *fleet.Group) { g.IdleTime = time.Minute }, false},
		{"allocation_strategy", func(g *fleet.Group) { g.SpotStrategy = "capacity-optimized" }, false},
		{"template_version_with_the_same_content", func(g *fleet.Group) { g.TemplateVersion = "2" }, false},
		// As a client repeats it, where the state file has nothing.
		{"no_arguments_and_empty_ones", func(g *fleet.Group) {
			g.Lifecycle = &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{{Name: "a", Arguments: []string{}}}}}
		}, false},
		{"arguments", func(g *fleet.Group) {
			g.Lifecycle = &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{{Name: "a", Arguments: []string{"x"}}}}}
		}, true},
		{"no_scripts", func(g *fleet.Group) { g.Lifecycle = nil }, true},
		{"image", func(g *fleet.Group) { g.Launch.ImageID = "ami-2" }, true},
		{"user_data", func(g *fleet.Group) { g.Launch.UserData = []byte("y") }, true},
		{"security_groups", func(g *fleet.Group) { g.Launch.SecurityGroups = []string{"sg-2"} }, true},
		{"key", func(g *fleet.Group) { g.Launch.KeyName = "k" }, true},
		{"tags", func(g *fleet.Group) { g.Launch.Tags = map[string]string{"a": "c"} }, true},
		{"profile", func(g *fleet.Group) { g.ProfileARN = "arn:q" }, true},
		{"purchase_option", func(g *fleet.Group) { g.PurchaseOption = "SPOT" }, true},
	} {
		after := base
		tt.edit(&after)
		if got := fleet.NeedsReplacement(base, after); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		i, p := fleet.NewEC2ID("i"), fleet.NewPCSID()
		if len(i) != 19 || !strings.HasPrefix(i, "i-0") || strings.Trim(i[2:], "0123456789abcdef") != "" {
			t.Fatalf("EC2 id %q", i)
		}
		if len(p) != 14 || !strings.HasPrefix(p, "pcs_") || strings.Trim(p[4:], "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			t.Fatalf("PCS id %q", p)
		}
		if seen[i] || seen[p] {
			t.Fatalf("%s or %s came twice", i, p)
		}
		seen[i], seen[p] = true, true
	}
	if got := fleet.PrivateDNS("10.77.0.5", "ap-northeast-1"); got != "ip-10-77-0-5.ap-northeast-1.compute.internal" {
		t.Errorf("host name %q", got)
	}
	if got := fleet.PrivateDNS("10.77.0.5", "us-east-1"); got != "ip-10-77-0-5.ec2.internal" {
		t.Errorf("host name %q", got)
	}
}

// N2: whatever groups are called (a-dy-b, x-st-y, a-1), a node's name leads
// back to its group and number alone.
func TestN2_NodeNamesLeadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Za-z][A-Za-z0-9-]{0,24}`)
		part := rapid.SampledFrom([]string{"a", "a-1", "a-dy-b", "x-st-y", "x-st-y-1", "a-dy-b-01", "a-"})
		g := fleet.Group{Name: rapid.OneOf(name, part).Draw(t, "name")}
		other := fleet.Group{Name: rapid.OneOf(name, part).Draw(t, "other")}
		n := rapid.IntRange(1, 4000).Draw(t, "n")
		node := g.NodeName(n)
		if got := g.NodeIndex(node); got != n {
			t.Fatalf("%s of %s is number %d, want %d", node, g.Name, got, n)
		}
		if k := other.NodeIndex(node); k != 0 && (other.NodeName(k) != node) {
			t.Fatalf("%s counts as number %d of %s", node, k, other.Name)
		}
		if k := other.NodeIndex(node); k != 0 && other.Name != g.Name {
			t.Fatalf("%s is of %s and of %s", node, g.Name, other.Name)
		}
		if names, err := slurm.Expand(node); err != nil || len(names) != 1 || names[0] != node {
			t.Fatalf("Slurm reads %s as %v, %v", node, names, err)
		}
	})
}
