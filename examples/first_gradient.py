"""A gradient crosses a process boundary."""

import telegrad as tg
from telegrad import dist_autograd, rpc


def square(x: tg.Tensor) -> tg.Tensor:
    """Runs on worker1, and is differentiated there too."""
    return x * x


if __name__ == "__main__":
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            x = tg.tensor([1.0, 2.0, 3.0], requires_grad=True)
            with dist_autograd.context() as context_id:
                y = rpc.rpc_sync("worker1", square, (x,))
                dist_autograd.backward(context_id, [y.sum()])
                gradient = dist_autograd.get_gradients(context_id)[x]
            print("y:", y.data)
            print("gradient of x:", gradient.data)
