/* SPDX-License-Identifier: Apache-2.0 */
/* sys: the C library's calls about time, randomness, the machine, the process and its descriptors. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#include "call_priv.h"
#include "file_priv.h"
#include "sock_priv.h"

/* ---- time ---- */

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){.tv_sec = (time_t)(ns / WORLD_SEC), .tv_nsec = (long)(ns % WORLD_SEC)};
}

CALL(int, clock_gettime, clockid_t clock, struct timespec *out)
{
	SIMULATED_OR(__real_clock_gettime(clock, out));
	world.now += 40; /* A loop that only reads the clock makes time pass */
	uint64_t at = world.now;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		at = world_wall(this_proc()->host);
	else if (clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
		at = world.steps * 2000;
	*out = timespec_of(at);
	return 0;
}

CALL(int, clock_getres, clockid_t clock, struct timespec *out)
{
	SIMULATED_OR(__real_clock_getres(clock, out));
	*out = (struct timespec){.tv_nsec = 1};
	return 0;
}

CALL(time_t, time, time_t *out)
{
	SIMULATED_OR(__real_time(out));
	time_t t = (time_t)(world_wall(this_proc()->host) / WORLD_SEC);
	if (out != NULL)
		*out = t;
	return t;
}

CALL(int, gettimeofday, struct timeval *tv, void *zone)
{
	SIMULATED_OR(__real_gettimeofday(tv, zone));
	uint64_t at = world_wall(this_proc()->host);
	*tv = (struct timeval){.tv_sec = (time_t)(at / WORLD_SEC), .tv_usec = (long)(at % WORLD_SEC / 1000)};
	return 0;
}

CALL(int, nanosleep, const struct timespec *want, struct timespec *left)
{
	SIMULATED_OR(__real_nanosleep(want, left));
	world_sleep((uint64_t)want->tv_sec * WORLD_SEC + (uint64_t)want->tv_nsec);
	return 0;
}

CALL(int, usleep, useconds_t us)
{
	SIMULATED_OR(__real_usleep(us));
	world_sleep((uint64_t)us * WORLD_US);
	return 0;
}

CALL(int, sched_yield, void)
{
	SIMULATED_OR(__real_sched_yield());
	fiber_yield();
	return 0;
}

/* ---- randomness ---- */

static void random_fill(void *p, size_t n)
{
	for (uint8_t *at = p; n > 0; n--)
		*at++ = (uint8_t)world_draw(256);
}

CALL(ssize_t, getrandom, void *p, size_t n, unsigned flags)
{
	SIMULATED_OR(__real_getrandom(p, n, flags));
	random_fill(p, n);
	return (ssize_t)n;
}

CALL(int, getentropy, void *p, size_t n)
{
	SIMULATED_OR(__real_getentropy(p, n));
	random_fill(p, n);
	return 0;
}

CALL(uint32_t, arc4random, void)
{
	uint32_t v = 0;
	random_fill(&v, sizeof v);
	return v;
}

/* The C++ library's random device reads the processor's. */
extern uint32_t __real__ZNSt13random_device9_M_getvalEv(void *device);
extern uint32_t __wrap__ZNSt13random_device9_M_getvalEv(void *device);
uint32_t __wrap__ZNSt13random_device9_M_getvalEv(void *device)
{
	SIMULATED_OR(__real__ZNSt13random_device9_M_getvalEv(device));
	return (uint32_t)world_draw(UINT64_C(1) << 32);
}

/* ---- the machine ---- */

CALL(pid_t, getpid, void)
{
	SIMULATED_OR(__real_getpid());
	return (pid_t)this_proc()->pid;
}

CALL(pid_t, gettid, void)
{
	SIMULATED_OR(__real_gettid());
	return (pid_t)world.current->id;
}

CALL(pid_t, getppid, void)
{
	SIMULATED_OR(__real_getppid());
	return 1;
}

CALL(int, gethostname, char *p, size_t n)
{
	SIMULATED_OR(__real_gethostname(p, n));
	(void)snprintf(p, n, "%s", this_proc()->host->name);
	return 0;
}

static long limit_of(int name, long real)
{
	return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? 2
		: name == _SC_PHYS_PAGES                                    ? 1 << 20
									    : real;
}

CALL(long, sysconf, int name)
{
	long real = __real_sysconf(name);
	return is_simulated() ? limit_of(name, real) : real;
}

CALL(long, __sysconf, int name)
{
	long real = __real___sysconf(name);
	return is_simulated() ? limit_of(name, real) : real;
}

CALL(int, get_nprocs, void)
{
	SIMULATED_OR(__real_get_nprocs());
	return 2;
}

CALL(int, sched_getaffinity, pid_t pid, size_t n, cpu_set_t *out)
{
	SIMULATED_OR(__real_sched_getaffinity(pid, n, out));
	memset(out, 0, n);
	CPU_SET_S(0, n, out);
	CPU_SET_S(1, n, out);
	return 0;
}

CALL(int, sched_getcpu, void)
{
	SIMULATED_OR(__real_sched_getcpu());
	return 0;
}

CALL(int, sysinfo, struct sysinfo *out)
{
	SIMULATED_OR(__real_sysinfo(out));
	*out = (struct sysinfo){.totalram = 4UL << 30, .freeram = 2UL << 30, .mem_unit = 1};
	return 0;
}

CALL(int, uname, struct utsname *out)
{
	SIMULATED_OR(__real_uname(out));
	*out = (struct utsname){.sysname = "Linux", .release = "6.1.0", .machine = "x86_64"};
	(void)snprintf(out->nodename, sizeof out->nodename, "%s", this_proc()->host->name);
	return 0;
}

CALL(char *, getenv, const char *name)
{
	SIMULATED_OR(__real_getenv(name));
	return strcmp(name, "TZ") == 0 ? (char *)(uintptr_t)"UTC" : NULL;
}

CALL(char *, secure_getenv, const char *name)
{
	SIMULATED_OR(__real_secure_getenv(name));
	return NULL;
}

CALL(int, getrlimit, int what, struct rlimit *out)
{
	SIMULATED_OR(__real_getrlimit(what, out));
	rlim_t most = what == (int)RLIMIT_NOFILE ? PROC_FILES : RLIM_INFINITY;
	*out = (struct rlimit){most, most};
	return 0;
}

CALL(int, getrlimit64, int what, struct rlimit64 *out)
{
	SIMULATED_OR(__real_getrlimit64(what, out));
	rlim64_t most = what == (int)RLIMIT_NOFILE ? PROC_FILES : RLIM64_INFINITY;
	*out = (struct rlimit64){most, most};
	return 0;
}

CALL(int, setrlimit64, int what, const struct rlimit64 *in)
{
	SIMULATED_OR(__real_setrlimit64(what, in));
	return 0;
}

CALL(int, getrusage, int who, struct rusage *out)
{
	SIMULATED_OR(__real_getrusage(who, out));
	*out = (struct rusage){.ru_maxrss = 10000};
	return 0;
}

CALL(struct mallinfo2, mallinfo2, void)
{
	SIMULATED_OR(__real_mallinfo2());
	return (struct mallinfo2){.uordblks = 1 << 20};
}

CALL(int, malloc_trim, size_t pad)
{
	SIMULATED_OR(__real_malloc_trim(pad));
	return 0;
}

CALL(int, prctl, int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	SIMULATED_OR(__real_prctl(option, a, b, c, d));
	return 0;
}

CALL(int, setpriority, __priority_which_t which, id_t who, int value)
{
	SIMULATED_OR(__real_setpriority(which, who, value));
	return 0;
}

CALL(mode_t, umask, mode_t mask)
{
	SIMULATED_OR(__real_umask(mask));
	mode_t before = this_proc()->umask;
	this_proc()->umask = mask & 0777;
	return before;
}

CALL(uid_t, getuid, void)
{
	SIMULATED_OR(__real_getuid());
	return 1000;
}

CALL(uid_t, geteuid, void)
{
	SIMULATED_OR(__real_geteuid());
	return 1000;
}

CALL(int, isatty, int fd)
{
	SIMULATED_OR(__real_isatty(fd));
	errno = ENOTTY;
	return 0;
}

CALL(void *, dlopen, const char *name, int flags)
{
	SIMULATED_OR(__real_dlopen(name, flags));
	return NULL;
}

CALL(int, sched_setscheduler, pid_t pid, int policy, const struct sched_param *param)
{
	SIMULATED_OR(__real_sched_setscheduler(pid, policy, param));
	return 0;
}

struct ifaddrs;
CALL(int, getifaddrs, struct ifaddrs **out)
{
	SIMULATED_OR(__real_getifaddrs(out));
	errno = ENOSYS;
	return -1;
}

/* ---- names ---- */

/* Return the address of a machine; NULL: there is none of that name. */
static const char *name_address(const char *name)
{
	if (strcasecmp(name, "localhost") == 0)
		return "127.0.0.1";
	cgn_list_each (l, &world.hosts) {
		struct world_host *h = CGN_CONTAINER(l, struct world_host, link);
		if (strcasecmp(h->name, name) == 0)
			return h->address;
	}
	return NULL;
}

CALL(int, getaddrinfo, const char *node, const char *service, const struct addrinfo *hints,
	struct addrinfo **out)
{
	SIMULATED_OR(__real_getaddrinfo(node, service, hints, out));
	struct addrinfo numeric = hints != NULL ? *hints : (struct addrinfo){0};
	int rc;
	numeric.ai_flags = (numeric.ai_flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST | AI_NUMERICSERV;
	struct fiber *f = world.current;
	world.current = NULL; /* The C library's own work stays outside of the world */
	rc = __real_getaddrinfo(node, service, &numeric, out);
	world.current = f;
	if (rc == 0 || node == NULL)
		return rc;
	if (hints != NULL && hints->ai_flags & AI_NUMERICHOST)
		return EAI_NONAME;
	world_sleep(50 * WORLD_US + world_draw(world_chance(50) ? WORLD_SEC : WORLD_MS));
	const char *address = name_address(node);
	if (address == NULL || (hints != NULL && hints->ai_family == AF_INET6))
		return EAI_NONAME;
	world.current = NULL;
	rc = __real_getaddrinfo(address, service, &numeric, out);
	world.current = f;
	return rc;
}

/* ---- processes ---- */

CALL(void, exit, int status)
{
	if (!is_simulated())
		__real_exit(status);
	proc_exit(this_proc(), status);
}

CALL(void, _exit, int status)
{
	if (!is_simulated())
		__real__exit(status);
	proc_exit(this_proc(), status);
}

CALL(void, abort, void)
{
	if (!is_simulated())
		__real_abort();
	size_t n = this_proc()->log.n, from = n > 2000 ? n - 2000 : 0;
	world_fail("%s on %s aborts; its last words:\n%.*s", this_proc()->name, this_proc()->host->name,
		(int)(n - from), n > 0 ? this_proc()->log.p + from : "");
}

static struct world_proc *proc_of(pid_t pid)
{
	cgn_list_each (l, &world.procs) {
		struct world_proc *p = CGN_CONTAINER(l, struct world_proc, link);
		if ((pid_t)p->pid == pid && p->alive)
			return p;
	}
	return NULL;
}

CALL(int, kill, pid_t pid, int signo)
{
	SIMULATED_OR(__real_kill(pid, signo));
	struct world_proc *p = proc_of(pid);
	if (p == NULL) {
		errno = ESRCH;
		return -1;
	}
	if (signo != 0)
		world_signal(p, signo);
	return 0;
}

CALL(int, raise, int signo)
{
	SIMULATED_OR(__real_raise(signo));
	world_signal(this_proc(), signo);
	return 0;
}

CALL(int, sigaction, int signo, const struct sigaction *in, struct sigaction *out)
{
	SIMULATED_OR(__real_sigaction(signo, in, out));
	struct world_proc *p = this_proc();
	if (out != NULL)
		*out = (struct sigaction){.sa_handler = p->plain[signo]};
	if (in != NULL)
		p->plain[signo] = in->sa_handler;
	return 0;
}

CALL(__sighandler_t, signal, int signo, __sighandler_t fn)
{
	SIMULATED_OR(__real_signal(signo, fn));
	__sighandler_t before = this_proc()->plain[signo];
	this_proc()->plain[signo] = fn;
	return before;
}

CALL(int, sigprocmask, int how, const sigset_t *in, sigset_t *out)
{
	SIMULATED_OR(__real_sigprocmask(how, in, out));
	if (out != NULL)
		sigemptyset(out);
	return 0;
}

CALL(int, pthread_sigmask, int how, const sigset_t *in, sigset_t *out)
{
	SIMULATED_OR(__real_pthread_sigmask(how, in, out));
	if (out != NULL)
		sigemptyset(out);
	return 0;
}

/* Child processes are not simulated: an agent's engines are other processes of the world. */
CALL(pid_t, fork, void)
{
	SIMULATED_OR(__real_fork());
	errno = EAGAIN;
	return -1;
}

CALL(pid_t, waitpid, pid_t pid, int *status, int options)
{
	SIMULATED_OR(__real_waitpid(pid, status, options));
	errno = ECHILD;
	return -1;
}

REFUSED(pid_t, _Fork, EAGAIN, void)
REFUSED(int, execve, ENOSYS, const char *p, char *const *a, char *const *e)
REFUSED(int, execvp, ENOSYS, const char *p, char *const *a)
REFUSED(int, pipe, EMFILE, int *p)
REFUSED(int, pipe2, EMFILE, int *p, int flags)
REFUSED(int, eventfd, EMFILE, unsigned n, int flags)
REFUSED(int, epoll_create1, EMFILE, int flags)
REFUSED(int, inotify_init1, EMFILE, int flags)
REFUSED(ssize_t, sendfile64, EINVAL, int to, int from, off64_t *at, size_t n)
REFUSED(int, chdir, EACCES, const char *path)

int __wrap_posix_spawn(pid_t *pid, const char *path, const void *actions, const void *attr, char *const *argv,
	char *const *env);
int __wrap_posix_spawn(pid_t *pid, const char *path, const void *actions, const void *attr, char *const *argv,
	char *const *env)
{
	(void)pid, (void)path, (void)actions, (void)attr, (void)argv, (void)env;
	return ENOSYS;
}

extern long __real_syscall(long n, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long n, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long n, long a, long b, long c, long d, long e, long f)
{
	SIMULATED_OR(__real_syscall(n, a, b, c, d, e, f));
	errno = ENOSYS;
	return -1;
}

CALL(char *, getcwd, char *p, size_t n)
{
	SIMULATED_OR(__real_getcwd(p, n));
	(void)snprintf(p, n, "/");
	return p;
}

/* ---- descriptors ---- */

CALL(int, close, int fd)
{
	SIMULATED_OR(__real_close(fd));
	return proc_close(fd);
}

extern int __real_fcntl(int fd, int command, ...);
extern int __real_fcntl64(int fd, int command, ...);

/* A lock of a process, on the whole file: which part is asked for does not matter. It ends with the process, or when the
 * process closes the file. */
static int record_lock(struct object *o, const struct flock *want)
{
	struct vnode *n = o->file.node;
	if (n->record_lock != 0 && n->record_lock != this_proc()->pid) {
		errno = EAGAIN;
		return -1;
	}
	n->record_lock = want->l_type == F_UNLCK ? 0 : this_proc()->pid;
	return 0;
}

static int descriptor_control(int fd, int command, long arg)
{
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	switch (command) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		o->refs++;
		return proc_fd_new(o, (int)arg);
	case F_GETFL:
		return o->flags;
	case F_SETFL:
		o->flags = (o->flags & ~(O_NONBLOCK | O_APPEND)) | ((int)arg & (O_NONBLOCK | O_APPEND));
		return 0;
	case F_SETLK:
		return o->kind == OBJECT_FILE ? record_lock(o, (const struct flock *)(uintptr_t)arg) : 0;
	case F_ADD_SEALS: /* The programs write only where they may, and not every kernel has all seals */
		return o->kind == OBJECT_REAL ? 0 : result_of(EINVAL);
	case F_GETFD:
	case F_SETFD:
		return 0;
	default:
		if (o->kind == OBJECT_REAL)
			return __real_fcntl64(o->real, command, arg);
		errno = EINVAL;
		return -1;
	}
}

int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...);
int __wrap_fcntl64(int fd, int command, ...)
{
	va_list ap;
	va_start(ap, command);
	long arg = va_arg(ap, long);
	va_end(ap);
	return is_simulated() ? descriptor_control(fd, command, arg) : __real_fcntl64(fd, command, arg);
}

int __wrap_fcntl(int fd, int command, ...)
{
	va_list ap;
	va_start(ap, command);
	long arg = va_arg(ap, long);
	va_end(ap);
	return is_simulated() ? descriptor_control(fd, command, arg) : __real_fcntl64(fd, command, arg);
}

CALL(int, dup2, int from, int to)
{
	SIMULATED_OR(__real_dup2(from, to));
	struct object *o = proc_fd(from);
	if (o == NULL)
		return -1;
	o->refs++;
	object_unref(this_proc()->files[to]);
	this_proc()->files[to] = o;
	return to;
}

CALL(int, dup3, int from, int to, int flags)
{
	SIMULATED_OR(__real_dup3(from, to, flags));
	return __wrap_dup2(from, to);
}

extern int __real_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...)
{
	(void)fd, (void)what;
	errno = ENOTTY;
	return -1;
}

CALL(int, memfd_create, const char *name, unsigned flags)
{
	int real = __real_memfd_create(name, flags);
	if (!is_simulated() || real < 0)
		return real;
	struct object *o = object_new(OBJECT_REAL, O_RDWR);
	o->real = real;
	return proc_fd_new(o, 0);
}

CALL(void *, mmap64, void *at, size_t n, int prot, int flags, int fd, off64_t offset)
{
	if (!is_simulated() || fd < 0)
		return __real_mmap64(at, n, prot, flags, fd, offset);
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return MAP_FAILED;
	if (o->kind == OBJECT_REAL)
		return __real_mmap64(at, n, prot, flags, o->real, offset);
	if (o->kind != OBJECT_FILE || (flags & MAP_SHARED && prot & PROT_WRITE)) {
		errno = ENODEV;
		return MAP_FAILED;
	}
	char *p = __real_mmap64(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p != MAP_FAILED)
		(void)file_read(o->file.node, p, n, (uint64_t)offset);
	return p;
}

extern void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
	return __wrap_mmap64(at, n, prot, flags, fd, offset);
}

/* ---- poll ---- */

struct waiting {
	struct sock_watch watch;
	struct fiber *fiber;
};

static void on_waiting(struct sock_watch *w)
{
	fiber_wake(CGN_CONTAINER(w, struct waiting, watch)->fiber);
}

static int poll_look(struct pollfd *fds, nfds_t n)
{
	int found = 0;
	for (nfds_t i = 0; i < n; i++) {
		struct object *o = fds[i].fd >= 0 ? proc_fd(fds[i].fd) : NULL;
		fds[i].revents = 0;
		if (fds[i].fd < 0)
			continue;
		unsigned r = o == NULL             ? (unsigned)POLLNVAL
			: o->kind == OBJECT_SOCKET ? sock_ready(o->sock)
						   : (unsigned)(POLLIN | POLLOUT);
		fds[i].revents =
			(short)(r & ((unsigned)(unsigned short)fds[i].events | POLLERR | POLLHUP | POLLNVAL));
		found += fds[i].revents != 0;
	}
	return found;
}

CALL(int, poll, struct pollfd *fds, nfds_t n, int timeout)
{
	SIMULATED_OR(__real_poll(fds, n, timeout));
	uint64_t until = timeout < 0 ? UINT64_MAX : world.now + (uint64_t)timeout * WORLD_MS;
	int found = poll_look(fds, n);
	world.now += 500;
	while (found == 0 && until > world.now) {
		struct waiting w[16];
		CGN_MUST(n <= CGN_COUNT(w));
		for (nfds_t i = 0; i < n; i++) {
			struct object *o = fds[i].fd >= 0 ? proc_fd(fds[i].fd) : NULL;
			w[i] = (struct waiting){.fiber = world.current};
			cgn_list_init(&w[i].watch.link);
			if (o != NULL && o->kind == OBJECT_SOCKET)
				sock_watch(o->sock, &w[i].watch, on_waiting);
		}
		(void)fiber_wait(until);
		for (nfds_t i = 0; i < n; i++)
			cgn_list_drop(&w[i].watch.link);
		found = poll_look(fds, n);
	}
	return found;
}

/* ---- sockets ---- */

/* Wait until the socket may have changed. */
static void sock_wait(struct sock *s)
{
	struct waiting w = {.fiber = world.current};
	cgn_list_init(&w.watch.link);
	sock_watch(s, &w.watch, on_waiting);
	(void)fiber_wait(UINT64_MAX);
	cgn_list_drop(&w.watch.link);
}

static struct object *sock_object(int fd)
{
	struct object *o = proc_fd(fd);
	if (o != NULL && o->kind != OBJECT_SOCKET) {
		errno = ENOTSOCK;
		return NULL;
	}
	return o;
}

static int sock_fd_new(struct sock *s, int flags)
{
	struct object *o = object_new(OBJECT_SOCKET, O_RDWR | (flags & SOCK_NONBLOCK ? O_NONBLOCK : 0));
	o->sock = s;
	return proc_fd_new(o, 0);
}

CALL(int, socket, int family, int type, int protocol)
{
	SIMULATED_OR(__real_socket(family, type, protocol));
	int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (family != AF_INET && family != AF_INET6 && family != AF_UNIX) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	if (proc_lacks_file())
		return -1;
	return sock_fd_new(sock_new(this_proc()->host, family, kind), type);
}

CALL(int, socketpair, int family, int type, int protocol, int out[2])
{
	SIMULATED_OR(__real_socketpair(family, type, protocol, out));
	struct sock *s[2];
	sock_pair(this_proc()->host, type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC), s);
	out[0] = sock_fd_new(s[0], type);
	out[1] = sock_fd_new(s[1], type);
	return out[0] < 0 || out[1] < 0 ? -1 : 0;
}

CALL(int, bind, int fd, const struct sockaddr *sa, socklen_t len)
{
	SIMULATED_OR(__real_bind(fd, sa, len));
	struct object *o = sock_object(fd);
	return o != NULL ? result_of(sock_bind(o->sock, sa)) : -1;
}

CALL(int, listen, int fd, int backlog)
{
	SIMULATED_OR(__real_listen(fd, backlog));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	o->sock->state = SOCK_LISTENS;
	return 0;
}

CALL(int, accept4, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	SIMULATED_OR(__real_accept4(fd, sa, len, flags));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	if (!cgn_list_empty(&o->sock->accepts) && proc_lacks_file())
		return -1;
	struct sock *s;
	while ((s = sock_accept(o->sock)) == NULL) {
		if (o->flags & O_NONBLOCK) {
			errno = EAGAIN;
			return -1;
		}
		sock_wait(o->sock);
	}
	sock_address(s, true, sa, len);
	return sock_fd_new(s, flags);
}

CALL(int, connect, int fd, const struct sockaddr *sa, socklen_t len)
{
	SIMULATED_OR(__real_connect(fd, sa, len));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	int e = sock_connect(o->sock, sa);
	while (e == EINPROGRESS && !(o->flags & O_NONBLOCK)) {
		if (o->sock->state == SOCK_CONNECTS)
			sock_wait(o->sock);
		else {
			e = o->sock->error;
			o->sock->error = 0;
		}
	}
	return result_of(e);
}

CALL(int, shutdown, int fd, int how)
{
	SIMULATED_OR(__real_shutdown(fd, how));
	struct object *o = sock_object(fd);
	return o == NULL ? -1 : how == SHUT_RD ? 0 : result_of(sock_shutdown(o->sock));
}

/* Return the open file that the message passes on, with a reference, or NULL. */
static struct object *passed_of(const struct msghdr *m)
{
	struct msghdr copy = *m;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&copy); c != NULL; c = CMSG_NXTHDR(&copy, c)) {
		int fd;
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
		struct object *o = proc_fd(fd);
		if (o != NULL)
			o->refs++;
		return o;
	}
	return NULL;
}

CALL(ssize_t, sendmsg, int fd, const struct msghdr *m, int flags)
{
	SIMULATED_OR(__real_sendmsg(fd, m, flags));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	for (;;) {
		ssize_t n = o->sock->kind == SOCK_DGRAM   ? sock_send_datagram(o->sock, m)
			: o->sock->kind == SOCK_SEQPACKET ? sock_send_packet(o->sock, m, passed_of(m))
							  : sock_send(o->sock, m);
		if (n >= 0 || errno != EAGAIN || o->flags & O_NONBLOCK || flags & MSG_DONTWAIT)
			return n;
		sock_wait(o->sock);
	}
}

CALL(ssize_t, send, int fd, const void *p, size_t n, int flags)
{
	SIMULATED_OR(__real_send(fd, p, n, flags));
	struct iovec v = {(void *)(uintptr_t)p, n};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	return __wrap_sendmsg(fd, &m, flags);
}

CALL(int, sendmmsg, int fd, struct mmsghdr *m, unsigned n, int flags)
{
	SIMULATED_OR(__real_sendmmsg(fd, m, n, flags));
	unsigned i = 0;
	for (; i < n; i++) {
		ssize_t sent = __wrap_sendmsg(fd, &m[i].msg_hdr, flags);
		if (sent < 0)
			break;
		m[i].msg_len = (unsigned)sent;
	}
	return i > 0 || n == 0 ? (int)i : -1;
}

/* Put a packet into the message, with the open file that it passes on. */
static ssize_t packet_into(struct packet *k, struct msghdr *m)
{
	size_t at = 0;
	for (size_t i = 0; i < m->msg_iovlen && at < k->n; i++) {
		size_t part = m->msg_iov[i].iov_len < k->n - at ? m->msg_iov[i].iov_len : k->n - at;
		memcpy(m->msg_iov[i].iov_base, k->bytes + at, part);
		at += part;
	}
	m->msg_flags = at < k->n ? MSG_TRUNC : 0;
	if (m->msg_name != NULL && k->from.sin_family != 0) {
		m->msg_namelen = m->msg_namelen < sizeof k->from ? m->msg_namelen : sizeof k->from;
		memcpy(m->msg_name, &k->from, m->msg_namelen);
	}
	struct cmsghdr *c =
		k->passed != NULL && m->msg_controllen >= CMSG_SPACE(sizeof(int)) ? CMSG_FIRSTHDR(m) : NULL;
	if (c != NULL) {
		int fd = proc_fd_new(k->passed, 0);
		k->passed = NULL;
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
		m->msg_controllen = CMSG_SPACE(sizeof fd);
	} else {
		m->msg_controllen = 0;
	}
	return (ssize_t)at;
}

static ssize_t message_receive(struct object *o, struct msghdr *m, int flags)
{
	struct sock *s = o->sock;
	if (s->kind == SOCK_STREAM)
		return m->msg_iovlen > 0
			? sock_recv(s, m->msg_iov[0].iov_base, m->msg_iov[0].iov_len, flags & MSG_PEEK)
			: 0;
	struct packet *k = sock_packet(s);
	if (k == NULL && s->kind == SOCK_SEQPACKET && (s->ended || s->error != 0))
		return sock_recv(s, NULL, 0, false);
	if (k == NULL) {
		errno = EAGAIN;
		return -1;
	}
	ssize_t n = packet_into(k, m);
	if (!(flags & MSG_PEEK))
		packet_free(k);
	return n;
}

CALL(ssize_t, recvmsg, int fd, struct msghdr *m, int flags)
{
	SIMULATED_OR(__real_recvmsg(fd, m, flags));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	for (;;) {
		ssize_t n = message_receive(o, m, flags);
		if (n >= 0 || errno != EAGAIN || o->flags & O_NONBLOCK || flags & MSG_DONTWAIT)
			return n;
		sock_wait(o->sock);
	}
}

CALL(ssize_t, recv, int fd, void *p, size_t n, int flags)
{
	SIMULATED_OR(__real_recv(fd, p, n, flags));
	struct iovec v = {p, n};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	return __wrap_recvmsg(fd, &m, flags);
}

CALL(int, recvmmsg, int fd, struct mmsghdr *m, unsigned n, int flags, struct timespec *timeout)
{
	SIMULATED_OR(__real_recvmmsg(fd, m, n, flags, timeout));
	unsigned i = 0;
	for (; i < n; i++) {
		ssize_t got = __wrap_recvmsg(fd, &m[i].msg_hdr, flags | (i > 0 ? MSG_DONTWAIT : 0));
		if (got < 0)
			break;
		m[i].msg_len = (unsigned)got;
	}
	return i > 0 ? (int)i : -1;
}

CALL(int, getsockopt, int fd, int level, int name, void *value, socklen_t *len)
{
	SIMULATED_OR(__real_getsockopt(fd, level, name, value, len));
	struct object *o = sock_object(fd);
	int v = 0;
	if (o == NULL)
		return -1;
	if (level == SOL_SOCKET && name == SO_ERROR) {
		v = o->sock->error;
		o->sock->error = 0;
	} else if (level == SOL_SOCKET && name == SO_ACCEPTCONN) {
		v = o->sock->state == SOCK_LISTENS;
	} else if (level == SOL_SOCKET && name == SO_TYPE) {
		v = o->sock->kind;
	} else if (level == SOL_SOCKET && name == SO_PEERCRED) {
		struct ucred who = {.pid = 1, .uid = 1000, .gid = 1000};
		memcpy(value, &who, *len < sizeof who ? *len : sizeof who);
		return 0;
	} else if (level != SOL_SOCKET) {
		errno = ENOPROTOOPT;
		return -1;
	}
	memcpy(value, &v, *len < sizeof v ? *len : sizeof v);
	*len = sizeof v;
	return 0;
}

CALL(int, setsockopt, int fd, int level, int name, const void *value, socklen_t len)
{
	SIMULATED_OR(__real_setsockopt(fd, level, name, value, len));
	struct object *o = sock_object(fd);
	int v = 0;
	if (o == NULL)
		return -1;
	if (level == SOL_SOCKET && name == SO_LINGER && len >= sizeof(struct linger)) {
		struct linger l;
		memcpy(&l, value, sizeof l);
		o->sock->lingers_not = l.l_onoff && l.l_linger == 0;
	}
	memcpy(&v, value, len < sizeof v ? len : sizeof v);
	if (level == SOL_SOCKET && name == SO_REUSEPORT)
		o->sock->shares = v != 0;
	return 0;
}

CALL(int, getsockname, int fd, struct sockaddr *sa, socklen_t *len)
{
	SIMULATED_OR(__real_getsockname(fd, sa, len));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	sock_address(o->sock, false, sa, len);
	return 0;
}

CALL(int, getpeername, int fd, struct sockaddr *sa, socklen_t *len)
{
	SIMULATED_OR(__real_getpeername(fd, sa, len));
	struct object *o = sock_object(fd);
	if (o == NULL)
		return -1;
	sock_address(o->sock, true, sa, len);
	return 0;
}
