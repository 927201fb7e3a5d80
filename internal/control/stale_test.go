package control_test

import (
	"testing"
	"time"
)

// slurmctld ends right after it has called ResumeProgram, before anybody saw
// its node powering up, and is back 30 s later. The instance that it asked
// for must not be ended meanwhile: nothing says that the node is idle, what
// is known of it is only old.
func TestInstanceSurvivesASilentSlurmctld(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.ctld.with(func() { s.ctld.away = true })
		s.within(10*time.Second, "the instance is launched", func() bool { return s.live("g-1").ID != "" })
		s.wait(30 * time.Second)
		if all := s.instances("g-1"); len(all) != 1 || !all[0].State.Live() || all[0].State == "shutting-down" {
			t.Errorf("after 30 s without slurmctld: %v\n%q", brief(all), s.kinds("g-1"))
		}
	})
}
