// Package certfile keeps certificates, keys and authorities that stand in PEM files as
// new as the files are, in a program that is not restarted when they are rotated (F12).
//
//  1. Whoever asks gets what the files hold at that moment. They are read again only when
//     one of them changed: another inode, size, mtime or ctime (a rename, a symlink that leads elsewhere, a
//     write in place).
//  2. While they cannot be read, or a certificate and its key do not belong together
//     (in the middle of a rotation), the last good ones are used, and tell is given the error, once for
//     each wording. They are tried again at each question.
//  3. The first reading has to succeed.
//  4. An expired certificate is used as it is: the other side decides.
package certfile
