import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    # Two threads on a shared machine of two cores wait for each other most of the time.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
