import pytest
import torch

from stages.recipes.tiny import muon_internals as muon

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def stepped(matrix: torch.Tensor, gradient: torch.Tensor, *, in_fp32: bool) -> torch.Tensor:
    parameter = torch.nn.Parameter(matrix.clone())
    parameter.grad = gradient.clone()
    with muon.muon_in_fp32(in_fp32):
        torch.optim.Muon([parameter], lr=0.1, weight_decay=0.0, momentum=0.0, nesterov=False).step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(24, 10), (10, 24)])
def test_a_step_of_muon_in_fp32_is_that_in_bf16_without_its_rounding(shape):
    torch.manual_seed(1)
    matrix, gradient = torch.randn(shape), torch.randn(shape)
    in_bf16 = matrix - stepped(matrix, gradient, in_fp32=False)
    in_fp32 = matrix - stepped(matrix, gradient, in_fp32=True)
    scale = max(1, shape[0] / shape[1]) ** 0.5
    expected = 0.1 * scale * muon.orthogonalize(gradient, COEFFICIENTS, 5, 1e-7)
    torch.testing.assert_close(in_fp32, expected)
    assert 0 < (in_bf16 - in_fp32).norm() < 0.05 * in_fp32.norm()
    singular = torch.linalg.svdvals(in_fp32) / (0.1 * scale)
    assert 0.5 < singular.min() < singular.max() < 1.5
