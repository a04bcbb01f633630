package walsurgery

// NewestSegment is the number of the newest segment in walDir; the first one is 0. It reads
// the directory only, also beside a running etcd.
//
// Errors: ErrNoWAL, ErrCorrupt (a segment is missing), ErrUnexpectedFormat, or of the file system.
func NewestSegment(walDir string) (uint64, error) {
	segs, err := segmentNames(walDir)
	if err != nil {
		return 0, err
	}
	return segs[len(segs)-1].seq, nil
}
