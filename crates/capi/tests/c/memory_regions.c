/* Memory events of oarlock/memory_events.h: regions, and what becomes of their keys. */
#include "rule.h"
#include "pair.h"
#include "memory.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static struct oarlock_memory_channel *channel;

static void region_rules(struct ibv_pd *pd)
{
	char *memory = map_at("memory-reg", NULL);
	struct ibv_mr *mr = watch("memory-reg", pd, memory, 1, OARLOCK_MEMORY_REPORT), *same, *plain;
	struct ibv_pd *other = ibv_alloc_pd(pd->context);
	uint64_t count = 0;

	CHECK("memory-reg", mr->context == pd->context && mr->pd == pd && mr->addr == memory && mr->length == LENGTH);
	CHECK("memory-reg", ibv_dealloc_pd(pd) == EBUSY);
	ok("memory-reg");

	NO_OBJECT("memory-reg-eexist",
		  oarlock_reg_mr_notify(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE, 1, OARLOCK_MEMORY_REPORT), EEXIST);
	same = watch("memory-reg-overlap", pd, memory, 2, OARLOCK_MEMORY_REPORT);
	CHECK("memory-reg-overlap", oarlock_dereg_mr_notified(same, &count) == 0 && count == 0);
	same = watch("memory-reg-eexist", pd, memory, 2, OARLOCK_MEMORY_REPORT);
	CHECK("memory-reg-eexist", ibv_dereg_mr(same) == 0);
	ok("memory-reg-eexist");
	ok("memory-reg-overlap");

	NO_OBJECT("memory-reg-einval", oarlock_reg_mr_notify(pd, memory, 0, 0, 3, OARLOCK_MEMORY_REPORT), EINVAL);
	NO_OBJECT("memory-reg-einval", oarlock_reg_mr_notify(pd, memory, PAGE, 0, 3, 2), EINVAL);
	NO_OBJECT("memory-reg-einval",
		  oarlock_reg_mr_notify(pd, memory, PAGE, IBV_ACCESS_REMOTE_WRITE, 3, OARLOCK_MEMORY_REPORT), EINVAL);
	ok("memory-reg-einval");

	char *hole = map_at("memory-reg-efault", NULL);
	munmap(hole + 4 * PAGE, PAGE);
	NO_OBJECT("memory-reg-efault", oarlock_reg_mr_notify(pd, hole, LENGTH, 0, 3, OARLOCK_MEMORY_REPORT), EFAULT);
	NO_OBJECT("memory-reg-efault", oarlock_reg_mr_notify(pd, hole, SIZE_MAX, 0, 3, OARLOCK_MEMORY_REPORT), EFAULT);
	munmap(hole, LENGTH);
	ok("memory-reg-efault");

	/* Nothing is left of what was refused. */
	same = watch("memory-reg-refused", pd, memory, 3, OARLOCK_MEMORY_REPORT);
	CHECK("memory-reg-refused", ibv_dereg_mr(same) == 0);
	no_event("memory-reg-refused", channel);
	ok("memory-reg-refused");

	plain = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	CHECK("memory-dereg-unwatched", plain != NULL);
	CHECK("memory-dereg-unwatched", oarlock_dereg_mr_notified(plain, &count) == EINVAL);
	FAILS("memory-dereg-unwatched", oarlock_mr_is_valid(plain), EINVAL);
	CHECK("memory-dereg-unwatched", ibv_dereg_mr(plain) == 0);
	ok("memory-dereg-unwatched");

	/* Other memory needs a registration of its own; rights and domain may change. */
	errno = 0;
	CHECK("memory-rereg", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, PAGE, 0) ==
				      IBV_REREG_MR_ERR_CMD);
	CHECK("memory-rereg", errno == EOPNOTSUPP && mr->length == LENGTH);
	CHECK("memory-rereg", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0,
					   IBV_ACCESS_LOCAL_WRITE) == 0);
	CHECK("memory-rereg", mr->pd == other && oarlock_mr_is_valid(mr) == 1);
	ok("memory-rereg");

	munmap(memory, LENGTH);
	CHECK("memory-valid", oarlock_settle_memory_events(channel) == 0);
	CHECK("memory-valid", oarlock_mr_is_valid(mr) == 0);
	CHECK("memory-valid", only_event("memory-valid", channel).cookie == 1);
	ok("memory-valid");
	CHECK("memory-dereg-plain", ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);
	ok("memory-dereg-plain");
}

/* Memory that another userfaultfd of the program has, and memory that the kernel does not let watch. */
static void refusal_rules(struct ibv_pd *pd)
{
	char *memory = map_at("memory-reg-ebusy", NULL);
	int own = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)memory, .len = LENGTH },
		.mode = UFFDIO_REGISTER_MODE_WP,
	};
	struct oarlock_memory_capabilities capabilities;
	struct ibv_mr *mr;
	char name[] = "/tmp/memory_regions.XXXXXX";

	CHECK("memory-reg-ebusy", own >= 0 && ioctl(own, UFFDIO_API, &api) == 0);
	CHECK("memory-reg-ebusy", ioctl(own, UFFDIO_REGISTER, &range) == 0);
	NO_OBJECT("memory-reg-ebusy", oarlock_reg_mr_notify(pd, memory, LENGTH, 0, 1, OARLOCK_MEMORY_REPORT), EBUSY);
	close(own);
	mr = watch("memory-reg-ebusy", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-reg-ebusy", ibv_dereg_mr(mr) == 0);
	munmap(memory, LENGTH);
	ok("memory-reg-ebusy");

	/* A shared mapping of a file that was opened for reading only; in lesser modes every file. */
	CHECK("memory-reg-kind", oarlock_query_memory_events(pd->context, &capabilities) == 0);
	int written = mkstemp(name);
	CHECK("memory-reg-kind", written >= 0 && ftruncate(written, LENGTH) == 0);
	int only_read = open(name, O_RDONLY | O_CLOEXEC);
	memory = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, only_read, 0);
	CHECK("memory-reg-kind", memory != MAP_FAILED && unlink(name) == 0);
	NO_OBJECT("memory-reg-kind", oarlock_reg_mr_notify(pd, memory, LENGTH, 0, 1, OARLOCK_MEMORY_REPORT), EOPNOTSUPP);
	munmap(memory, LENGTH);
	close(only_read);
	close(written);
	ok("memory-reg-kind");
}

/* What is registered, of which some changed: those end, and the others stay. */
static void notified_rules(struct ibv_pd *pd)
{
	char *memory[6];
	struct ibv_mr *mrs[6];
	struct oarlock_deregistered list[8];
	struct oarlock_memory_event event;

	for (uint64_t at = 0; at < 6; at++) {
		memory[at] = map_at("memory-dereg-all", NULL);
		mrs[at] = watch("memory-dereg-all", pd, memory[at], 100 + at, OARLOCK_MEMORY_REPORT);
	}
	CHECK("memory-dereg-all", oarlock_dereg_notified_mrs(channel, list, 8) == 0);
	for (int at = 1; at < 6; at += 2)
		munmap(memory[at], LENGTH);
	/* One of the three was read. */
	CHECK("memory-dereg-all", oarlock_read_memory_events(channel, &event, 1) == 1 && event.cookie == 101);
	CHECK("memory-dereg-all-room", oarlock_dereg_notified_mrs(channel, list, 2) == 2);
	CHECK("memory-dereg-all", list[0].cookie == 101 && list[0].events == 1 && list[0].mr == mrs[1]);
	CHECK("memory-dereg-all", list[1].cookie == 103 && list[1].events == 0 && list[1].mr == mrs[3]);
	CHECK("memory-dereg-all-room", oarlock_dereg_notified_mrs(channel, list, 2) == 1 && list[0].cookie == 105);
	CHECK("memory-dereg-all-room", oarlock_dereg_notified_mrs(channel, list, 2) == 0);
	FAILS("memory-dereg-all-room", oarlock_dereg_notified_mrs(channel, list, 0), EINVAL);
	FAILS("memory-dereg-all-room", oarlock_dereg_notified_mrs(channel, NULL, 1), EINVAL);
	ok("memory-dereg-all-room");
	no_event("memory-dereg-all", channel);
	for (int at = 0; at < 6; at += 2) {
		CHECK("memory-dereg-all", oarlock_mr_is_valid(mrs[at]) == 1 && ibv_dereg_mr(mrs[at]) == 0);
		munmap(memory[at], LENGTH);
	}
	ok("memory-dereg-all");
}

static void policy_rules(struct ibv_pd *pd)
{
	char *memory = map_at("memory-policy", NULL);
	struct ibv_mr *mr = watch("memory-policy", pd, memory, 1, OARLOCK_MEMORY_DEREGISTER), *second;
	struct oarlock_deregistered list[2];
	uint64_t before = oarlock_memory_generation(channel), count = 77;

	munmap(memory, LENGTH);
	no_event("memory-policy", channel);
	CHECK("memory-policy", oarlock_memory_generation(channel) > before && oarlock_mr_is_valid(mr) == 0);
	memory = map_at("memory-policy", NULL);
	second = watch("memory-policy", pd, memory, 1, OARLOCK_MEMORY_DEREGISTER);
	ok("memory-policy");

	/* The object is the program's until it gives it back, in one way or the other. */
	CHECK("memory-policy-object", oarlock_dereg_mr_notified(mr, &count) == 0 && count == 0);
	munmap(memory, LENGTH);
	CHECK("memory-policy-object", oarlock_dereg_notified_mrs(channel, list, 2) == 1);
	CHECK("memory-policy-object", list[0].cookie == 1 && list[0].events == 0 && list[0].mr == second);
	ok("memory-policy-object");

	/* Who has the cookie now is not hurt by the end of who had it. */
	memory = map_at("memory-policy-cookie", NULL);
	mr = watch("memory-policy-cookie", pd, memory, 1, OARLOCK_MEMORY_DEREGISTER);
	munmap(memory, LENGTH);
	memory = map_at("memory-policy-cookie", NULL);
	second = watch("memory-policy-cookie", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	CHECK("memory-policy-cookie", ibv_dereg_mr(mr) == 0 && oarlock_mr_is_valid(second) == 1);
	munmap(memory, LENGTH);
	CHECK("memory-policy-cookie", only_event("memory-policy-cookie", channel).cookie == 1);
	CHECK("memory-policy-cookie", oarlock_dereg_mr_notified(second, &count) == 0 && count == 1);
	ok("memory-policy-cookie");
}

/* A segment of System V, whose end no event shows. */
static char *attach(const char *rule)
{
	int segment = shmget(IPC_PRIVATE, LENGTH, IPC_CREAT | 0600);
	char *memory = shmat(segment, NULL, 0);

	CHECK(rule, segment >= 0 && memory != (void *)-1 && shmctl(segment, IPC_RMID, NULL) == 0);
	memset(memory, 1, LENGTH);
	return memory;
}

static void silent_rules(struct ibv_pd *pd)
{
	struct oarlock_memory_capabilities capabilities;
	char *memory = map_at("memory-validate", NULL), *segment;
	struct ibv_mr *mr = watch("memory-validate", pd, memory, 1, OARLOCK_MEMORY_REPORT), *plain;
	struct oarlock_memory_event event;

	CHECK("memory-validate", oarlock_query_memory_events(pd->context, &capabilities) == 0);
	CHECK("memory-validate", capabilities.mode == OARLOCK_MEMORY_MODE_FULL);
	CHECK("memory-validate", oarlock_validate_mr(mr) == 1);
	no_event("memory-validate", channel);
	plain = ibv_reg_mr(pd, memory, LENGTH, 0);
	FAILS("memory-validate", oarlock_validate_mr(plain), EINVAL);
	CHECK("memory-validate", ibv_dereg_mr(plain) == 0);

	segment = attach("memory-validate");
	plain = watch("memory-validate", pd, segment, 2, OARLOCK_MEMORY_REPORT);
	CHECK("memory-validate", shmdt(segment) == 0);
	no_event("memory-validate", channel);
	CHECK("memory-validate", oarlock_mr_is_valid(plain) == 1);
	CHECK("memory-validate", oarlock_validate_mr(plain) == 0 && oarlock_mr_is_valid(plain) == 0);
	event = only_event("memory-validate", channel);
	CHECK("memory-validate", event.cookie == 2 && event.kind == OARLOCK_MEMORY_UNMAPPED);
	CHECK("memory-validate", oarlock_validate_mr(plain) == 0 && ibv_dereg_mr(plain) == 0);
	ok("memory-validate");

	CHECK("memory-invalidate", oarlock_invalidate_memory(channel, NULL, 0, OARLOCK_MEMORY_UNMAPPED) == EINVAL);
	CHECK("memory-invalidate", oarlock_invalidate_memory(channel, memory, SIZE_MAX, OARLOCK_MEMORY_UNMAPPED) == EINVAL);
	CHECK("memory-invalidate", oarlock_invalidate_memory(channel, memory, PAGE, 4) == EINVAL);
	segment = attach("memory-invalidate");
	plain = watch("memory-invalidate", pd, segment, 2, OARLOCK_MEMORY_REPORT);
	CHECK("memory-invalidate",
	      oarlock_invalidate_memory(channel, segment + PAGE, PAGE, OARLOCK_MEMORY_DISCARDED) == 0);
	CHECK("memory-invalidate", oarlock_mr_is_valid(plain) == 0 && oarlock_mr_is_valid(mr) == 1);
	event = only_event("memory-invalidate", channel);
	CHECK("memory-invalidate", event.cookie == 2 && event.kind == OARLOCK_MEMORY_DISCARDED);
	CHECK("memory-invalidate", event.flags == OARLOCK_MEMORY_HINT && event.hint_start == (uintptr_t)segment + PAGE);
	CHECK("memory-invalidate", shmdt(segment) == 0 && ibv_dereg_mr(plain) == 0);
	ok("memory-invalidate");

	CHECK("memory-validate", ibv_dereg_mr(mr) == 0);
	munmap(memory, LENGTH);
}

/* Posts one request of 64 bytes and gives how it ended. */
static enum ibv_wc_status done(const char *rule, struct end *end, void *local, uint32_t lkey, enum ibv_wr_opcode opcode,
			       void *remote, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local, .length = 64, .lkey = lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = rkey },
	}, *bad;

	CHECK(rule, ibv_post_send(end->qp, &wr, &bad) == 0);
	return completion(rule, end->cq).status;
}

struct connected {
	struct end one, two;
};

static struct connected new_pair(const char *rule, struct ibv_pd *pd)
{
	struct connected pair = { new_end(rule, pd, NULL, IBV_QPT_RC), new_end(rule, pd, NULL, IBV_QPT_RC) };

	connect_ends(rule, &pair.one, &pair.two);
	return pair;
}

static void destroy_pair(const char *rule, struct connected *pair)
{
	destroy_end(rule, &pair->one);
	destroy_end(rule, &pair->two);
}

/* The address is recycled, and the old key reaches nothing: what lies there now is not read and not written. */
static void key_rules(struct ibv_pd *pd)
{
	static char plain[64] __attribute__((aligned(4096)));
	struct ibv_mr *other = ibv_reg_mr(pd, plain, sizeof plain, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	static const struct {
		const char *rule;
		int is_local, opcode;
		enum ibv_wc_status ends;
	} cases[] = {
		{ "memory-key-local", 1, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR },
		{ "memory-key-read-into", 1, IBV_WR_RDMA_READ, IBV_WC_LOC_PROT_ERR },
		{ "memory-key-remote-write", 0, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR },
		{ "memory-key-remote-read", 0, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR },
	};

	CHECK("memory-key", other != NULL);
	for (unsigned long at = 0; at < sizeof cases / sizeof *cases; at++) {
		const char *rule = cases[at].rule;
		struct connected pair = new_pair(rule, pd);
		char *memory = map_at(rule, NULL);
		/* The policy makes no difference to keys. */
		struct ibv_mr *mr = watch(rule, pd, memory, 1, at & 1 ? OARLOCK_MEMORY_DEREGISTER : OARLOCK_MEMORY_REPORT);
		struct ibv_mr *target = cases[at].opcode == IBV_WR_RDMA_READ && cases[at].is_local ?
						ibv_reg_mr(pd, plain, sizeof plain,
							   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) :
						NULL;
		uint32_t plain_rkey = target ? target->rkey : other->rkey;
		void *local = cases[at].is_local ? memory : plain, *remote = cases[at].is_local ? plain : memory;
		uint32_t lkey = cases[at].is_local ? mr->lkey : other->lkey;
		uint32_t rkey = cases[at].is_local ? plain_rkey : mr->rkey;

		memset(memory, 'o', 64);
		memset(plain, 'p', 64);
		CHECK(rule, done(rule, &pair.one, local, lkey, cases[at].opcode, remote, rkey) == IBV_WC_SUCCESS);
		CHECK(rule, !memcmp(memory, plain, 64));

		munmap(memory, LENGTH);
		CHECK(rule, map_at(rule, memory) == memory);
		memset(memory, 'n', 64);
		memset(plain, 'p', 64);
		enum ibv_wc_status status = done(rule, &pair.one, local, lkey, cases[at].opcode, remote, rkey);
		if (status != cases[at].ends)
			FAIL(rule, "%s", ibv_wc_status_str(status));
		for (int byte = 0; byte < 64; byte++)
			CHECK(rule, memory[byte] == 'n' && plain[byte] == 'p');
		ok(rule);

		CHECK(rule, ibv_dereg_mr(mr) == 0 && (!target || ibv_dereg_mr(target) == 0));
		destroy_pair(rule, &pair);
		munmap(memory, LENGTH);
	}
	CHECK("memory-key-remote-write", ibv_dereg_mr(other) == 0);
}

static void window_rules(struct ibv_pd *pd)
{
	static char plain[64];
	struct connected pair = new_pair("memory-window", pd);
	char *memory = map_at("memory-window", NULL);
	struct ibv_mr *from = ibv_reg_mr(pd, plain, sizeof plain, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *mr = watch("memory-window", pd, memory, 1, OARLOCK_MEMORY_REPORT);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
	};
	struct oarlock_deregistered list[2];
	uint64_t count = 77;

	CHECK("memory-window", from && mw && ibv_bind_mw(pair.two.qp, mw, &bind) == 0);
	CHECK("memory-window", completion("memory-window", pair.two.cq).status == IBV_WC_SUCCESS);
	CHECK("memory-window", done("memory-window", &pair.one, plain, from->lkey, IBV_WR_RDMA_WRITE, memory, mw->rkey) ==
				       IBV_WC_SUCCESS);
	munmap(memory, LENGTH);
	CHECK("memory-window", map_at("memory-window", memory) == memory);
	CHECK("memory-window", done("memory-window", &pair.one, plain, from->lkey, IBV_WR_RDMA_WRITE, memory, mw->rkey) ==
				       IBV_WC_REM_ACCESS_ERR);
	CHECK("memory-window", memory[0] == 1);
	ok("memory-window");

	/* It stays while the window is bound, whoever asks. */
	CHECK("memory-window-busy", oarlock_dereg_mr_notified(mr, &count) == EBUSY && count == 77);
	CHECK("memory-window-busy", oarlock_dereg_notified_mrs(channel, list, 2) == 0);
	CHECK("memory-window-busy", ibv_dealloc_mw(mw) == 0);
	CHECK("memory-window-busy", oarlock_dereg_notified_mrs(channel, list, 2) == 1 && list[0].mr == mr);
	ok("memory-window-busy");

	CHECK("memory-window", ibv_dereg_mr(from) == 0);
	destroy_pair("memory-window", &pair);
	munmap(memory, LENGTH);
}

/* Threads register, change and deregister through one channel: each learns of its own regions through its cookies. */
#define THREADS 4
#define ROUNDS 200

static void *churn(void *of)
{
	struct ibv_pd *pd = of;
	static uint64_t threads;
	uint64_t cookie = 1000 + __atomic_fetch_add(&threads, 1, __ATOMIC_RELAXED);

	for (int round = 0; round < ROUNDS; round++) {
		char *memory = map_at("memory-threads", NULL);
		struct ibv_mr *mr = watch("memory-threads", pd, memory, cookie, OARLOCK_MEMORY_REPORT);

		CHECK("memory-threads", oarlock_mr_is_valid(mr) == 1);
		munmap(memory, LENGTH);
		CHECK("memory-threads", oarlock_settle_memory_events(channel) == 0 && oarlock_mr_is_valid(mr) == 0);
		CHECK("memory-threads", oarlock_dereg_mr_notified(mr, NULL) == 0);
	}
	return NULL;
}

static void thread_rules(struct ibv_pd *pd)
{
	pthread_t threads[THREADS];

	for (int at = 0; at < THREADS; at++)
		CHECK("memory-threads", pthread_create(&threads[at], NULL, churn, pd) == 0);
	for (int at = 0; at < THREADS; at++)
		CHECK("memory-threads", pthread_join(threads[at], NULL) == 0);
	no_event("memory-threads", channel);
	ok("memory-threads");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;
	struct ibv_pd *pd;

	start(argc, argv);
	/* Another library: there is nothing to show. */
	if (!oarlock_has_memory_events())
		return 0;
	context = open_port("memory-reg");
	pd = ibv_alloc_pd(context);
	channel = new_memory_channel("memory-reg", context);
	PART(region_rules(pd));
	PART(refusal_rules(pd));
	PART(notified_rules(pd));
	PART(policy_rules(pd));
	PART(silent_rules(pd));
	PART(key_rules(pd));
	PART(window_rules(pd));
	PART(thread_rules(pd));
	CHECK("memory-reg", oarlock_destroy_memory_channel(channel) == 0);
	CHECK("memory-reg", ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	return 0;
}
