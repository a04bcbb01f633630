package failover

import "fmt"

// UnmarshalText reads what MarshalText writes.
func (p *Phase) UnmarshalText(b []byte) error { return named(p, phaseNames[:], string(b), "phase") }

// UnmarshalText reads what MarshalText writes.
func (k *ActionKind) UnmarshalText(b []byte) error {
	return named(k, actionNames[:], string(b), "action")
}

// UnmarshalText reads what MarshalText writes.
func (k *EventKind) UnmarshalText(b []byte) error {
	return named(k, eventNames[:], string(b), "event")
}

// UnmarshalText reads what MarshalText writes.
func (r *Reason) UnmarshalText(b []byte) error {
	for i := range reasonText {
		if reasonText[i].name == string(b) {
			*r = Reason(i)
			return nil
		}
	}
	return fmt.Errorf("no reason %q", b)
}

func named[T ~uint8](v *T, names []string, name, what string) error {
	for i, n := range names {
		if n == name {
			*v = T(i)
			return nil
		}
	}
	return fmt.Errorf("no %s %q", what, name)
}
