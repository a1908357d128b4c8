/* What a forked child has of its parent's objects, and what it can have of its own. */
#include "rule.h"
#include "pair.h"
#include <sys/wait.h>

struct whole {
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct end one, two;
};

static char memory[2][64];

static struct whole make(const char *rule)
{
	struct whole whole = { .pd = ibv_alloc_pd(port_context) };

	CHECK(rule, whole.pd != NULL);
	whole.mr = ibv_reg_mr(whole.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(rule, whole.mr != NULL);
	whole.one = new_end(rule, whole.pd, NULL, IBV_QPT_RC);
	whole.two = new_end(rule, whole.pd, NULL, IBV_QPT_RC);
	connect_ends(rule, &whole.one, &whole.two);
	return whole;
}

/* The text arrives at the other end of the memory. */
static void transfer(const char *rule, struct whole *whole, const char *text)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory[0], .length = sizeof memory[0], .lkey = whole->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)memory[1], .rkey = whole->mr->rkey },
	}, *bad;

	strcpy(memory[0], text);
	CHECK(rule, ibv_post_send(whole->one.qp, &wr, &bad) == 0);
	CHECK(rule, completion(rule, whole->one.cq).status == IBV_WC_SUCCESS);
	CHECK(rule, strcmp(memory[1], text) == 0);
}

static void unmake(const char *rule, struct whole *whole)
{
	destroy_end(rule, &whole->one);
	destroy_end(rule, &whole->two);
	CHECK(rule, ibv_dereg_mr(whole->mr) == 0 && ibv_dealloc_pd(whole->pd) == 0);
}

static void child(struct whole *of_parent)
{
	struct ibv_async_event event;
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = of_parent->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	errno = 0;
	CHECK("fork-old-objects", !ibv_alloc_pd(port_context) && errno == EPERM);
	errno = 0;
	CHECK("fork-old-objects", !ibv_reg_mr(of_parent->pd, memory, 64, IBV_ACCESS_LOCAL_WRITE) && errno == EPERM);
	CHECK("fork-old-objects", ibv_dereg_mr(of_parent->mr) == EPERM);
	CHECK("fork-old-objects", ibv_post_send(of_parent->one.qp, &wr, &bad) == EPERM && bad == &wr);
	FAILS("fork-old-objects", ibv_get_async_event(port_context, &event), EPERM);
	ok("fork-old-objects");

	/* A device of its own. */
	port_context = NULL;
	open_port("fork-own-objects");
	struct whole own = make("fork-own-objects");
	transfer("fork-own-objects", &own, "of the child");
	unmake("fork-own-objects", &own);
	CHECK("fork-own-objects", ibv_close_device(port_context) == 0);
	ok("fork-own-objects");
}

int main(int argc, char **argv)
{
	int status;

	start(argc, argv);
	open_port("fork-parent");
	struct whole whole = make("fork-parent");
	transfer("fork-parent", &whole, "before the fork");
	for (int i = 0; i < 3; i++) {
		fflush(stdout);
		pid_t pid = fork();
		CHECK("fork-parent", pid >= 0);
		if (pid == 0) {
			alarm(60);
			/* The first leaves at once, the second without clearing up. */
			if (i == 0)
				exit(0);
			child(&whole);
			if (i == 1)
				_exit(0);
			exit(0);
		}
		transfer("fork-parent", &whole, "beside the child");
		CHECK("fork-parent", waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		transfer("fork-parent", &whole, "after the child");
	}
	unmake("fork-parent", &whole);
	CHECK("fork-parent", ibv_close_device(port_context) == 0);
	ok("fork-parent");
	return 0;
}
