package scenario

import "math/rand/v2"

// Shuffle is the cells in a random order in which each fault comes once before any comes again, as long as it has cells left: a
// soak is shorter than the matrix, and most of that are named steps.
func Shuffle(cells []Cell, rng *rand.Rand) (out []Cell) {
	of := map[string][]Cell{}
	var faults []string
	for _, i := range rng.Perm(len(cells)) {
		name := cells[i].Fault.Name
		if len(of[name]) == 0 {
			faults = append(faults, name)
		}
		of[name] = append(of[name], cells[i])
	}
	for len(out) < len(cells) {
		rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, name := range faults {
			if len(of[name]) > 0 {
				out, of[name] = append(out, of[name][0]), of[name][1:]
			}
		}
	}
	return out
}
