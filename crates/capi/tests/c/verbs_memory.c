/* Protection domains, memory regions, windows. */
#include "rule.h"
#include "pair.h"
#include <sys/mman.h>

/* Of infiniband/driver.h, which programs declare for themselves. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

static void region_rules(struct ibv_context *context)
{
	static char memory[8192] __attribute__((aligned(4096)));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_mr *mr;
	volatile int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;

	CHECK("mr-public", pd && pd->context == context);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK("mr-public", mr && mr->context == context && mr->pd == pd);
	CHECK("mr-public", mr->addr == memory && mr->length == sizeof memory);
	ok("mr-public");

	CHECK("mr-pd-busy", ibv_dealloc_pd(pd) == EBUSY);
	CHECK("mr-pd-busy", ibv_dereg_mr(mr) == 0);
	ok("mr-pd-busy");

	errno = 0;
	CHECK("mr-efault", !ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	void *read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	errno = 0;
	CHECK("mr-efault", !ibv_reg_mr(pd, read_only, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	mr = ibv_reg_mr(pd, read_only, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK("mr-efault", mr && ibv_dereg_mr(mr) == 0);
	munmap(read_only, 4096);
	ok("mr-efault");

	errno = 0;
	CHECK("mr-einval", !ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	errno = 0;
	CHECK("mr-einval", !ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_ATOMIC) && errno == EINVAL);
	ok("mr-einval");

	/* The macro takes the other function for these. */
	mr = ibv_reg_mr(pd, memory, sizeof memory, access);
	CHECK("mr-optional", mr && ibv_dereg_mr(mr) == 0);
	ok("mr-optional");

	mr = ibv_reg_mr_iova(pd, memory, 4096, 0x7000000000, IBV_ACCESS_LOCAL_WRITE);
	CHECK("mr-iova", mr && mr->addr == memory && ibv_dereg_mr(mr) == 0);
	errno = 0;
	CHECK("mr-iova", !ibv_reg_mr_iova(pd, memory, 4096, 0x7000000001, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	ok("mr-iova");

	CHECK("mr-fork", ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	CHECK("mr-fork", ibv_dontfork_range(memory, 64) == 0 && ibv_dofork_range(memory, 64) == 0);
	ok("mr-fork");

	CHECK("pd-dealloc", ibv_dealloc_pd(pd) == 0);
	ok("pd-dealloc");
}

/* Posts one request and gives how it ended. */
static enum ibv_wc_status done(const char *rule, struct end *end, struct ibv_mr *mr, enum ibv_wr_opcode opcode,
			       void *remote, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey };
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

static void window_rules(struct ibv_context *context)
{
	static char source[64] = "through the window", target[4096] __attribute__((aligned(4096)));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct end one = new_end("mw-bind", pd, NULL, IBV_QPT_RC), two = new_end("mw-bind", pd, NULL, IBV_QPT_RC);
	struct ibv_mr *from = ibv_reg_mr(pd, source, sizeof source, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = ibv_reg_mr(pd, target, sizeof target, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {
		.wr_id = 7,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { .mr = to, .addr = (uintptr_t)target, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_wc wc;

	CHECK("mw-bind", from && to && mw && second);
	CHECK("mw-bind", mw->type == IBV_MW_TYPE_1 && second->type == IBV_MW_TYPE_2 && mw->pd == pd);
	connect_ends("mw-bind", &one, &two);

	uint32_t before = mw->rkey;
	CHECK("mw-bind", ibv_bind_mw(two.qp, mw, &bind) == 0);
	wc = completion("mw-bind", two.cq);
	CHECK("mw-bind", wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_BIND_MW);
	CHECK("mw-bind", mw->rkey != before);
	CHECK("mw-bind", done("mw-bind", &one, from, IBV_WR_RDMA_WRITE, target, mw->rkey) == IBV_WC_SUCCESS);
	CHECK("mw-bind", !strcmp(target, source));
	ok("mw-bind");

	CHECK("mw-type", ibv_bind_mw(two.qp, second, &bind) == EINVAL);
	errno = 0;
	CHECK("mw-type", !ibv_alloc_mw(pd, 3) && errno == EINVAL);
	ok("mw-type");

	CHECK("mw-busy", ibv_dereg_mr(to) == EBUSY);
	ok("mw-busy");

	/* Beyond the window the peer has no right. */
	CHECK("mw-bounds",
	      done("mw-bounds", &one, from, IBV_WR_RDMA_WRITE, target + 32, mw->rkey) == IBV_WC_REM_ACCESS_ERR);
	ok("mw-bounds");

	destroy_end("mw-dealloc", &one);
	destroy_end("mw-dealloc", &two);
	CHECK("mw-dealloc", ibv_dealloc_pd(pd) == EBUSY);
	CHECK("mw-dealloc", ibv_dealloc_mw(mw) == 0 && ibv_dealloc_mw(second) == 0);
	CHECK("mw-dealloc", ibv_dereg_mr(to) == 0 && ibv_dereg_mr(from) == 0);
	CHECK("mw-dealloc", ibv_dealloc_pd(pd) == 0);
	ok("mw-dealloc");
}

int main(int argc, char **argv)
{
	struct ibv_context *context;

	start(argc, argv);
	context = open_port("mr-public");
	PART(region_rules(context));
	PART(window_rules(context));
	CHECK("mr-public", ibv_close_device(context) == 0);
	return 0;
}
