/* SPDX-License-Identifier: Apache-2.0 */
/* proc: machines, processes and their descriptors. A process is the fibers of one program, its descriptors, and a copy
 * of the programs' global variables, which is put in place before one of its fibers runs. What it has allocated stays
 * when it is killed: a world ends with its process. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_priv.h"

/* The programs' writable data, as world.ld puts it together. */
extern uint8_t world_globals_begin[], world_globals_end[];
static uint8_t *pristine;

static size_t globals_size(void)
{
	return (size_t)(world_globals_end - world_globals_begin);
}

void proc_enter(struct world_proc *p)
{
	if (world.inside == p || p->bare)
		return;
	if (world.inside != NULL)
		memcpy(world.inside->globals, world_globals_begin, globals_size());
	memcpy(world_globals_begin, p->globals, globals_size());
	world.inside = p;
}

/* ---- machines ---- */

struct world_host *world_host_new(const char *name)
{
	struct world_host *h = CGN_NEW(struct world_host);
	*h = (struct world_host){.number = world.n_hosts++, .next_port = 32768};
	h->root = vnode_root(h);
	cgn_list_init(&h->names);
	h->ip = 0x0a000001U + h->number;
	(void)snprintf(h->name, sizeof h->name, "%s", name);
	(void)snprintf(h->address, sizeof h->address, "10.0.0.%u", h->number + 1);
	cgn_list_init(&h->socks);
	cgn_list_push(&world.hosts, &h->link);
	return h;
}

const char *world_host_address(const struct world_host *h)
{
	return h->address;
}

void world_cut(struct world_host *a, struct world_host *b, bool cut)
{
	a->cut[b->number] = b->cut[a->number] = cut;
	world_note("cut", a->number * 64 + b->number, cut);
}

void world_wall_jump(struct world_host *h, int64_t ns)
{
	h->skew += ns;
}

/* ---- descriptors ---- */

struct object *object_new(enum object_kind kind, int flags)
{
	struct object *o = CGN_NEW(struct object);
	*o = (struct object){.kind = kind, .refs = 1, .flags = flags};
	return o;
}

extern int __real_close(int fd);
void object_unref(struct object *o)
{
	if (o == NULL || --o->refs > 0)
		return;
	switch (o->kind) {
	case OBJECT_SOCKET:
		sock_free(o->sock);
		break;
	case OBJECT_FILE:
		file_unlock(o);
		vnode_unref_open(o->file.node);
		free(o->file.path);
		break;
	case OBJECT_REAL:
		(void)__real_close(o->real);
		break;
	case OBJECT_NULL:
	case OBJECT_OUTPUT:
		break;
	}
	free(o);
}

int proc_fd_new(struct object *o, int least)
{
	struct world_proc *p = this_proc();
	for (int fd = least; fd < PROC_FILES; fd++)
		if (p->files[fd] == NULL) {
			p->files[fd] = o;
			return fd;
		}
	object_unref(o);
	errno = EMFILE;
	return -1;
}

struct object *proc_fd(int fd)
{
	struct object *o = fd >= 0 && fd < PROC_FILES ? this_proc()->files[fd] : NULL;
	if (o == NULL)
		errno = EBADF;
	return o;
}

int proc_close(int fd)
{
	struct object *o = proc_fd(fd);
	if (o == NULL)
		return -1;
	this_proc()->files[fd] = NULL;
	if (o->kind == OBJECT_FILE && o->file.node->record_lock == this_proc()->pid)
		o->file.node->record_lock = 0;
	object_unref(o);
	return 0;
}

/* ---- life ---- */

static void *program_run(void *arg)
{
	struct world_proc *p = arg;
	proc_exit(p, p->main(p->argc, p->argv));
}

struct world_proc *world_start(struct world_host *h, const char *name, world_main *fn,
	const char *const *argv)
{
	if (pristine == NULL) {
		pristine = CGN_NEW_ARRAY(uint8_t, globals_size() + 1);
		memcpy(pristine, world_globals_begin, globals_size());
	}
	struct world_proc *p = CGN_NEW(struct world_proc);
	*p = (struct world_proc){.host = h,
		.pid = 1000 + ++world.n_procs,
		.alive = true,
		.main = fn,
		.umask = 022,
		.born = world.now};
	(void)snprintf(p->name, sizeof p->name, "%s", name);
	cgn_list_init(&p->fibers);
	cgn_list_init(&p->loops);
	cgn_list_init(&p->pool.waiting);
	cgn_list_push(&world.procs, &p->link);
	p->globals = CGN_NEW_ARRAY(uint8_t, globals_size() + 1);
	memcpy(p->globals, pristine, globals_size());
	while (argv[p->argc] != NULL)
		p->argc++;
	p->argv = CGN_NEW_ARRAY(char *, (size_t)p->argc + 1);
	for (int i = 0; i < p->argc; i++)
		p->argv[i] = cgn_str_dupz(cgn_str_of(argv[i]));
	p->files[0] = object_new(OBJECT_NULL, O_RDONLY);
	p->files[1] = object_new(OBJECT_OUTPUT, O_WRONLY);
	p->files[2] = object_new(OBJECT_OUTPUT, O_WRONLY);
	world_note("start", p->pid, 0);
	if (fn != NULL) {
		world_tell("%s: %s starts", h->name, name);
		(void)fiber_new(p, program_run, p);
	}
	return p;
}

static void proc_locks_end(const struct world_proc *p)
{
	for (int fd = 0; fd < PROC_FILES; fd++) {
		const struct object *o = p->files[fd];
		if (o != NULL && o->kind == OBJECT_FILE && o->file.node->record_lock == p->pid)
			o->file.node->record_lock = 0;
	}
}

void proc_end(struct world_proc *p, int status)
{
	if (!p->alive)
		return;
	p->alive = false;
	p->status = status;
	world_note("end", p->pid, (uint64_t)(int64_t)status);
	world_tell("%s: %s ends, status %d", p->host->name, p->name, status);
	proc_locks_end(p);
	for (int fd = 0; fd < PROC_FILES; fd++) {
		object_unref(p->files[fd]);
		p->files[fd] = NULL;
	}
	cgn_list_each_safe (l, &p->fibers) {
		struct fiber *f = CGN_CONTAINER(l, struct fiber, sibling);
		if (f != world.current)
			fiber_free(f);
	}
}

void proc_exit(struct world_proc *p, int status)
{
	proc_end(p, status);
	world.current->state = FIBER_DEAD;
	world.current->detached = true;
	fiber_leave();
	world_fail("a process that has ended runs");
}

void world_plain(struct world_proc *p)
{
	(p != NULL ? p : this_proc())->bare = true;
}

void world_kill(struct world_proc *p)
{
	proc_end(p, -SIGKILL);
}

void world_signal(struct world_proc *p, int signo)
{
	if (!p->alive)
		return;
	world_note("signal", p->pid, (uint64_t)signo);
	if (p->handlers[signo] != NULL)
		uv_signal_arrived(p->handlers[signo]);
	else if (p->plain[signo] == SIG_DFL)
		proc_end(p, -signo);
	else if (p->plain[signo] != SIG_IGN) {
		struct world_proc *before = world.inside;
		proc_enter(p);
		p->plain[signo](signo);
		if (before != NULL)
			proc_enter(before);
	}
}

void world_pause(struct world_proc *p, bool stopped)
{
	p->paused = stopped;
	world_note("pause", p->pid, stopped);
	world_tell("%s: %s %s", p->host->name, p->name, stopped ? "is stopped" : "goes on");
}

uint64_t world_age(const struct world_proc *p)
{
	return world.now - p->born;
}

bool world_handles(const struct world_proc *p, int signo)
{
	return p->handlers[signo] != NULL || p->plain[signo] != SIG_DFL;
}

bool world_alive(const struct world_proc *p)
{
	return p->alive;
}

int world_status(const struct world_proc *p)
{
	return p->status;
}

const char *world_log(struct world_proc *p, size_t *n)
{
	*n = p->log.n;
	return (const char *)p->log.p;
}

uint64_t world_longest_turn(const struct world_proc *p)
{
	return p->longest;
}

size_t world_threads(const struct world_proc *p)
{
	return p->n_fibers;
}

size_t world_descriptors(const struct world_proc *p)
{
	size_t n = 0;
	for (int fd = 0; fd < PROC_FILES; fd++)
		n += p->files[fd] != NULL;
	return n;
}
