/* SPDX-License-Identifier: Apache-2.0 */
/* world, inside: fibers, the order of events, processes and what their descriptors mean. */
#pragma once
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/core/buf.h"
#include "base/core/list.h"
#include "disk.h"
#include "world.h"

/* ---- memory.c: the world's own memory does not count as the process's that runs ---- */
extern void *__real_malloc(size_t n);
extern void *__real_calloc(size_t n, size_t size);
extern void *__real_realloc(void *p, size_t n);
extern void __real_free(void *p);
static inline void *world_got(void *p)
{
	if (p == NULL)
		world_fail("no memory for the world");
	return p;
}
#undef CGN_NEW
#undef CGN_NEW_ARRAY
#undef CGN_GROWN
#define CGN_NEW(type)          ((type *)world_got(__real_calloc(1, sizeof(type))))
#define CGN_NEW_ARRAY(type, n) ((type *)world_got(__real_calloc((n) > 0 ? (n) : 1, sizeof(type))))
#define CGN_GROWN(p, n)        ((__typeof__(p))world_got(__real_realloc((p), (n) * sizeof *(p))))

/* ---- fiber.c: a thread of a simulated process ---- */
enum fiber_state { FIBER_READY, FIBER_RUNS, FIBER_WAITS, FIBER_DEAD };
struct fiber {
	struct cgn_link link;    /* In world.ready while it is ready */
	struct cgn_link sibling; /* In the process's list */
	struct world_proc *proc;
	void *sp; /* Stack pointer while it does not run */
	uint8_t *stack;
	void *(*run)(void *);
	void *arg, *result;
	enum fiber_state state;
	uint64_t waits; /* Counts its waits: an old timeout does not end a new wait */
	bool timed_out, detached;
	int saved_errno;
	struct fiber *joiner;
	unsigned id;
	char name[16];
	struct cgn_link park; /* In the list of those that wait for a lock or a condition */
	const void *at;       /* The lock or condition */
	void *fake_stack;     /* AddressSanitizer's */
	struct fiber_value {
		unsigned key; /* 0: none */
		void *value;
	} values[8];     /* pthread_setspecific's */
	uint64_t work;   /* Calls, and KiB that they moved: see work_add */
	uint8_t *locals; /* Thread-local variables, while another fiber's are in place */
};
struct fiber *fiber_new(struct world_proc *p, void *(*run)(void *), void *arg);
/* A thread's number is its pthread_t: an address would differ between runs. */
struct fiber *fiber_of(pthread_t id);
void fiber_free(struct fiber *f);
void fiber_enter(struct fiber *f); /* From the scheduler: run it until it waits */
void fiber_leave(void);            /* From the fiber: back to the scheduler */
/* Wait until fiber_wake or |until| (UINT64_MAX: no limit). Return false after the time. */
bool fiber_wait(uint64_t until);
void fiber_wake(struct fiber *f);
/* The thread ends: call what pthread_key_create asked for. */
void fiber_values_end(struct fiber *f);
void fiber_yield(void); /* Let others run first, sometimes */

/* ---- sched.c: what happens next ---- */
struct event {
	uint64_t at, order;
	void (*fn)(void *arg, uint64_t tag);
	void *arg;
	uint64_t tag;
};
void event_at(uint64_t at, void (*fn)(void *arg, uint64_t tag), void *arg, uint64_t tag);

struct world {
	bool on; /* A world has begun */
	uint64_t now, order, steps, hash, random;
	uint64_t wall_base;   /* Unix time in ns at the beginning */
	struct event *events; /* A heap */
	size_t n_events, cap_events;
	struct cgn_link ready; /* fiber.link */
	size_t n_ready;
	struct fiber *current;     /* NULL: the scheduler runs */
	struct world_proc *inside; /* The process whose globals are in place */
	struct cgn_link hosts, procs;
	unsigned n_hosts, n_procs, n_fibers;
	bool ended;
};
extern struct world world;
/* True on a fiber: a call is simulated. Else it is a call of the test program itself. */
static inline bool is_simulated(void)
{
	return world.current != NULL;
}

/* The running thread made a call that moved |bytes|. A turn of a loop is bounded by these counts instead of by the processor's time,
 * which differs between machines and builds. */
static inline void work_add(size_t bytes)
{
	if (is_simulated())
		world.current->work += 1 + bytes / 1024;
}

/* ---- file objects: what a descriptor means ---- */
enum object_kind { OBJECT_SOCKET, OBJECT_FILE, OBJECT_NULL, OBJECT_OUTPUT, OBJECT_REAL };
struct object {
	enum object_kind kind;
	unsigned refs; /* Descriptors, and messages on their way */
	int flags;     /* O_NONBLOCK, O_APPEND, O_ACCMODE */
	union {
		struct sock *sock;
		struct {
			struct vnode *node;
			uint64_t offset;
			bool locked;
			char *path; /* As it was opened */
		} file;
		int real; /* A descriptor of this process: a memfd */
	};
};
struct object *object_new(enum object_kind kind, int flags);
void object_unref(struct object *o);

/* ---- proc.c ---- */
#define PROC_FILES   4096
#define PROC_SIGNALS 65
struct world_host {
	struct cgn_link link;
	char name[32], address[16];
	uint32_t ip; /* Host byte order */
	int64_t skew;
	struct vnode *root;
	struct cgn_link socks; /* Bound sockets */
	uint16_t next_port;
	bool cut[64]; /* By the other host's number */
	struct world_faults disk;
	uint64_t disk_used;
	struct cgn_link names; /* unsafe_name.link: changes that are not safe */
	uint64_t n_names;
	unsigned number;
};
struct world_proc {
	struct cgn_link link;
	char name[32];
	unsigned pid;
	struct world_host *host;
	struct object *files[PROC_FILES];
	struct cgn_link fibers;
	size_t n_fibers;
	uint8_t *globals; /* While another process's are in place */
	bool alive, paused;
	bool bare; /* Uses no global variables of the programs */
	int status;
	void *handlers[PROC_SIGNALS];     /* uv_signal_t, or NULL */
	void (*plain[PROC_SIGNALS])(int); /* sigaction's; SIG_DFL, SIG_IGN */
	struct cgn_link loops;
	struct cgn_buf log;
	world_main *main;
	char **argv;
	int argc;
	mode_t umask;
	size_t bytes; /* Allocated, if it is counted */
	uint64_t born;
	uint64_t longest; /* Work of the longest turn of one of its loops */
	struct {
		uint64_t files, memory; /* Calls fail one of so many times; 0: never */
	} scarce;
	struct sim_pool {
		struct cgn_link waiting; /* Work that no thread of the pool has taken */
		unsigned busy;
	} pool;
};
static inline struct world_proc *this_proc(void)
{
	return world.current->proc;
}
_Noreturn void proc_exit(struct world_proc *p, int status);
void proc_end(struct world_proc *p, int status); /* From another process, or the scheduler */
void proc_enter(struct world_proc *p);           /* Put its globals in place */
/* Give the object the lowest free descriptor from |least| on; -1 with errno. Takes over a reference. */
int proc_fd_new(struct object *o, int least);
struct object *proc_fd(int fd); /* NULL with errno EBADF */
int proc_close(int fd);
/* True: the process lacks a descriptor now and then, and does now; errno is set. */
bool proc_lacks_file(void);

/* ---- sock.c ---- */
#define SOCK_ROOM 262144 /* Bytes that a connection holds in one direction */
unsigned sock_ready(const struct sock *s);
/* Each change calls the watchers: a fiber is woken, a uv_poll_t is looked at. */
struct sock_watch {
	struct cgn_link link;
	void (*changed)(struct sock_watch *w);
};
void sock_watch(struct sock *s, struct sock_watch *w, void (*changed)(struct sock_watch *w));
void sock_free(struct sock *s); /* The last descriptor is closed */

/* ---- file.c ---- */
struct vnode *vnode_root(struct world_host *h);
void vnode_unref_open(struct vnode *n);
void file_unlock(struct object *o);

/* ---- uv.c ---- */
void uv_signal_arrived(void *handle);
