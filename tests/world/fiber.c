/* SPDX-License-Identifier: Apache-2.0 */
/* fiber: stacks and the switch between them. */
#include <errno.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>

#include "world_priv.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES ((size_t)512 << 10)
#define GUARD_BYTES ((size_t)4096)

/* Store the stack pointer of the caller in |*from|, with the registers that a function keeps on its stack, and go on
 * where |to| was stored. */
void fiber_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".text\n.globl fiber_switch\n.type fiber_switch,@function\nfiber_switch:\n"
	"push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
	".size fiber_switch,.-fiber_switch\n");
#define SAVED_WORDS 6
#elif defined(__aarch64__)
__asm__(".text\n.globl fiber_switch\n.type fiber_switch,@function\nfiber_switch:\n"
	"sub sp,sp,#160\n"
	"stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\n"
	"stp x29,x30,[sp,#80]\nstp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
	"mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
	"ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\n"
	"ldp x29,x30,[sp,#80]\nldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
	"add sp,sp,#160\nret\n.size fiber_switch,.-fiber_switch\n");
#define SAVED_WORDS 20
#define RETURN_WORD 11 /* x30 */
#else
#error "fiber_switch: no code for this processor"
#endif

static void *scheduler_sp;
#if defined(__SANITIZE_ADDRESS__)
static void *scheduler_fake;
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif

/* ---- stacks: kept for the next fiber ---- */

static uint8_t *spare[256];
static size_t n_spare;

static uint8_t *stack_new(void)
{
	if (n_spare > 0)
		return spare[--n_spare];
	uint8_t *p = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED || mprotect(p, GUARD_BYTES, PROT_NONE) != 0)
		world_fail("no memory for the stack of a fiber");
	return p;
}

static void stack_free(uint8_t *p)
{
	if (n_spare < CGN_COUNT(spare))
		spare[n_spare++] = p;
	else
		(void)munmap(p, STACK_BYTES + GUARD_BYTES);
}

/* ---- thread-local variables ----
 * Those of this program lie in one block below the thread's control block; libraries that are linked statically have
 * theirs in it. The last bytes are exchanged when another fiber runs: RocksDB's and GnuTLS's are there. The large
 * buffers before them hold nothing while a fiber waits. */

#define LOCALS_MOST ((size_t)2048)
static uint8_t *locals;
static size_t n_locals;
static struct fiber *locals_of; /* The fiber whose thread-locals are in place */

static int on_module(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data != NULL) {
			size_t all = info->dlpi_phdr[i].p_memsz,
			       from = all > LOCALS_MOST ? all - LOCALS_MOST : 0;
			from = from > info->dlpi_phdr[i].p_filesz
				? from
				: info->dlpi_phdr[i].p_filesz; /* Only those that begin as 0 */
			n_locals = all - from;
			locals = (uint8_t *)info->dlpi_tls_data + from;
		}
	return 1; /* The first module is the program */
}

static void locals_enter(struct fiber *f)
{
	if (locals_of == f)
		return;
	if (locals == NULL)
		(void)dl_iterate_phdr(on_module, NULL);
	if (locals_of != NULL)
		memcpy(locals_of->locals, locals, n_locals);
	if (f->locals == NULL) {
		f->locals = CGN_NEW_ARRAY(uint8_t, LOCALS_MOST);
		memset(f->locals, 0, LOCALS_MOST);
	}
	memcpy(locals, f->locals, n_locals);
	locals_of = f;
}

/* ---- life ---- */

static void fiber_main(void)
{
	struct fiber *f = world.current;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(NULL, &scheduler_bottom, &scheduler_size);
#endif
	f->result = f->run(f->arg);
	fiber_values_end(f);
	f->state = FIBER_DEAD;
	if (f->joiner != NULL)
		fiber_wake(f->joiner);
	fiber_leave();
	world_fail("a fiber that has ended runs");
}

static struct fiber **fibers; /* By number */
static size_t cap_fibers;

struct fiber *fiber_of(pthread_t id)
{
	CGN_MUST(id <= world.n_fibers);
	return fibers[id];
}

static void fiber_number(struct fiber *f)
{
	if (f->id >= cap_fibers) {
		cap_fibers = 2 * cap_fibers + 256;
		fibers = CGN_GROWN(fibers, cap_fibers);
	}
	fibers[f->id] = f;
}

struct fiber *fiber_new(struct world_proc *p, void *(*run)(void *), void *arg)
{
	struct fiber *f = CGN_NEW(struct fiber);
	*f = (struct fiber){.proc = p, .run = run, .arg = arg, .id = ++world.n_fibers, .stack = stack_new()};
	fiber_number(f);
	uintptr_t *top = (uintptr_t *)(void *)(f->stack + GUARD_BYTES + STACK_BYTES - 64);
#if defined(__x86_64__)
	*--top = 0; /* The return address of fiber_main, which keeps the stack aligned as the ABI asks */
	*--top = (uintptr_t)fiber_main;
	top -= SAVED_WORDS;
	memset(top, 0, SAVED_WORDS * sizeof *top);
#else
	top -= SAVED_WORDS;
	memset(top, 0, SAVED_WORDS * sizeof *top);
	top[RETURN_WORD] = (uintptr_t)fiber_main;
#endif
	f->sp = top;
	f->state = FIBER_WAITS;
	cgn_list_init(&f->link);
	cgn_list_init(&f->park);
	cgn_list_push(&p->fibers, &f->sibling);
	p->n_fibers++;
	fiber_wake(f);
	return f;
}

void fiber_free(struct fiber *f)
{
	if (f->state == FIBER_READY)
		world.n_ready--;
	cgn_list_drop(&f->link);
	cgn_list_drop(&f->park);
	cgn_list_drop(&f->sibling);
	f->proc->n_fibers--;
	stack_free(f->stack);
	if (locals_of == f)
		locals_of = NULL;
	free(f->locals);
	f->locals = NULL;
	f->state = FIBER_DEAD; /* The record stays: a timeout may still name it */
}

/* ---- switching ---- */

void fiber_enter(struct fiber *f)
{
	locals_enter(f);
	world.current = f;
	f->state = FIBER_RUNS;
	errno = f->saved_errno;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(&scheduler_fake, f->stack + GUARD_BYTES, STACK_BYTES);
#endif
	fiber_switch(&scheduler_sp, f->sp);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#endif
	world.current = NULL;
}

void fiber_leave(void)
{
	struct fiber *f = world.current;
	f->saved_errno = errno;
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(f->state == FIBER_DEAD ? NULL : &f->fake_stack, scheduler_bottom,
		scheduler_size);
#endif
	fiber_switch(&f->sp, scheduler_sp);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(f->fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

static void on_timeout(void *arg, uint64_t waits)
{
	struct fiber *f = arg;
	if (f->state != FIBER_WAITS || f->waits != waits)
		return;
	f->timed_out = true;
	fiber_wake(f);
}

bool fiber_wait(uint64_t until)
{
	struct fiber *f = world.current;
	f->waits++;
	f->timed_out = false;
	f->state = FIBER_WAITS;
	if (until != UINT64_MAX)
		event_at(until, on_timeout, f, f->waits);
	fiber_leave();
	return !f->timed_out;
}

void fiber_wake(struct fiber *f)
{
	if (f->state != FIBER_WAITS)
		return;
	f->state = FIBER_READY;
	cgn_list_push(&world.ready, &f->link);
	world.n_ready++;
}

void fiber_yield(void)
{
	struct fiber *f = world.current;
	f->state = FIBER_WAITS;
	fiber_wake(f);
	fiber_leave();
}
