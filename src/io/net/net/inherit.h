/* SPDX-License-Identifier: Apache-2.0 */
/* inherit: listening sockets that outlive the process. The service manager keeps them while the program restarts, so
 * clients wait in the socket's queue instead of being refused. Protocol: sd_listen_fds(3); FDSTORE=1 of sd_notify(3).
 * All functions: before the process has other threads. */
#pragma once
#include "base/core/err.h"

#define NET_MAX_INHERITED 256

/* Take the TCP sockets of LISTEN_FDS, and remove LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES from the
 * environment. net_listen with |keep| uses a socket that listens at its address instead of making one.
 * Descriptors other than listening TCP sockets are closed. */
void net_inherit_begin(void);
/* Close the sockets that no listener took. |unused| is called with the manager's name of each; may be NULL. */
void net_inherit_end(void (*unused)(void *arg, const char *name), void *arg);
/* From now on call |fn| with each listening socket that is opened with |keep|. NULL: call nothing. */
void net_inherit_offer(void (*fn)(void *arg, int fd), void *arg);
