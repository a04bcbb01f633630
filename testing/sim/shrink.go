package sim

// shrink takes events away as long as the run still goes wrong in the same way.
func shrink(s schedule, bad func(schedule) bool) schedule {
	for again := true; again; {
		again = false
		for size := max(len(s.events)/2, 1); size >= 1; size /= 2 {
			for i := 0; i+size <= len(s.events); {
				t := s
				t.events = append(append([]event{}, s.events[:i]...), s.events[i+size:]...)
				if bad(t) {
					s, again = t, true
				} else {
					i += size
				}
			}
		}
	}
	return s
}
